"""Modules of production models on four levels, with the interfaces of vLLM, computed with torch.

    L1  one kernel: the project's operators, and matrix products, embedding, cache and routing
    L2  blocks: parallel linear layers, attention, feed-forward layers, mixtures of experts
    L3  decoder layers
    L4  whole models

A level uses lower ones and itself; ``kbt graph`` reads which class names which.
Tokens of all sequences of a batch are rows of one matrix, as in vLLM: (tokens, hidden_size).
"""
