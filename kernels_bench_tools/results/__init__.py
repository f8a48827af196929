"""From records to what pages show: verdicts, ranks, tables, charts. Never imports torch."""
