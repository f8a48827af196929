"""Source of the kernel between sealed calls, and the numbers that it shares with what launches it."""

from __future__ import annotations

MOST_GIVEN, MOST_RETURNED, MOST_DIMENSIONS = 24, 20, 4
"""Tensors that one launch makes and digests, and dimensions of one with gaps."""
MOST_CALLS = 1000
"""Of a queue. That of a GPU holds about 1024 kernels."""
RELEASED, ENDED, SEED, DIGESTS = range(1, 5)
"""Words of the page."""
WAIT, MAKE, WRITE, FILL, LAST = (1 << number for number in range(5))
"""What a launch does beside digesting."""
ARRIVED, LATE, WRITE_CYCLES, ALL_CYCLES, ALL_NS, CALLS = range(6)
"""Words of the kernel's own memory; two for each call follow: its sum and its number."""
SOURCE = """
typedef unsigned long long u64; typedef unsigned int u32;
struct Given { u64 a, b, to, bytes, step, grain, width; };
struct Returned { u64 at, count, width, dims; u64 sizes[MOST_DIMENSIONS], strides[MOST_DIMENSIONS]; };
struct Seam {
    u64 page, work, flush, flushed, number, stages, given_count, returned_count, most_ns, seed;
    Given given[MOST_GIVEN]; Returned returned[MOST_RETURNED];
};
__device__ u64 now() { u64 ns; asm volatile("mov.u64 %0, %globaltimer;" : "=l"(ns)); return ns; }
__device__ u64 mix(u64 x) {
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
    return x ^ (x >> 31);
}
/* All blocks go on once all have come: until then each of them keeps its place on the device. */
__device__ void meet(volatile u64* work, u64 goal, u64 most_ns) {
    __syncthreads();
    if (!threadIdx.x) {
        __threadfence();
        atomicAdd((u64*)&work[ARRIVED], 1);
        u64 end = now() + most_ns;
        while (work[ARRIVED] < goal && !work[LATE]) if (now() > end) work[LATE] = 1;
        __threadfence();
    }
    __syncthreads();
}
__device__ u32 chosen(u64 bits, int lane, int width) {
    if (width == 2) return (bits >> (2 * lane) & 1 ? 0xffffu : 0) | (bits >> (2 * lane + 1) & 1 ? 0xffff0000u : 0);
    if (width >= 4) return bits >> (lane / (width / 4)) & 1 ? ~0u : 0;
    u32 mask = 0;
    for (int n = 0; n < 4; n++) if (bits >> (4 * lane + n) & 1) mask |= 0xffu << (8 * n);
    return mask;
}
/* Elements of two tensors, chosen one by one or row by row, beginning at another one. */
__device__ void make(const Given& g, u64 key, u64 first, u64 stride) {
    u64 start = g.step ? mix(key) % (g.bytes / g.step) * g.step : 0;
    bool fine = g.grain == g.width;
    bool wide = !((g.a | g.b | g.to | g.bytes | start) & 15) && (fine || !(g.grain & 15));
    u64 size = wide ? 16 : g.width;
    for (u64 n = first; n < g.bytes / size; n += stride) {
        u64 at = n * size, from = at + start;
        if (from >= g.bytes) from -= g.bytes;
        u64 bits = !g.grain ? ~0ull : mix(key + 1 + (fine ? at / 16 : at / g.grain));
        if (!wide && fine) bits = bits >> (at % 16 / g.width);
        if (wide) {
            uint4 a = *(const uint4*)(g.a + from), b = *(const uint4*)(g.b + from);
            int width = fine ? g.width : 16;
            u32 m0 = chosen(bits, 0, width), m1 = chosen(bits, 1, width);
            u32 m2 = chosen(bits, 2, width), m3 = chosen(bits, 3, width);
            *(uint4*)(g.to + at) = make_uint4(
                a.x & m0 | b.x & ~m0, a.y & m1 | b.y & ~m1, a.z & m2 | b.z & ~m2, a.w & m3 | b.w & ~m3);
        } else {
            u64 source = (bits & 1 ? g.a : g.b) + from;
            for (u64 byte = 0; byte < g.width; byte++) ((char*)(g.to + at))[byte] = ((const char*)source)[byte];
        }
    }
}
__device__ u64 weighted(u64 word, u64 place) {
    return (word ^ (word >> 29)) * ((place + 1) * 0x9E3779B97F4A7C15ull | 1);
}
__device__ u64 digest(const Returned& r, u64 first, u64 stride) {
    u64 sum = 0, bytes = r.count * r.width;
    if (!r.dims && !((r.at | bytes) & 15)) {
        for (u64 n = first; n < bytes / 16; n += stride) {
            ulonglong2 pair = *(const ulonglong2*)(r.at + n * 16);
            sum += weighted(pair.x, 2 * n) + weighted(pair.y, 2 * n + 1);
        }
        return sum;
    }
    for (u64 n = first; n < r.count; n += stride) {
        u64 place = r.dims ? 0 : n, left = n, word = 0;
        for (int d = (int)r.dims - 1; d >= 0; d--) { place += left % r.sizes[d] * r.strides[d]; left /= r.sizes[d]; }
        for (u64 byte = 0; byte < r.width; byte++)
            word = (word << 8 | word >> 56) ^ ((const unsigned char*)(r.at + place * r.width))[byte];
        sum += weighted(word, n);
    }
    return sum;
}
__device__ void add(u64* to, u64 value) {
    for (int lane = 16; lane; lane >>= 1) value += __shfl_down_sync(~0u, value, lane);
    if (!(threadIdx.x & 31)) atomicAdd(to, value);
}
extern "C" __global__ void __launch_bounds__(512, 4) seam(const __grid_constant__ Seam s) {
    volatile u64 *work = (volatile u64*)s.work, *page = (volatile u64*)s.page;
    u64 first = blockIdx.x * (u64)blockDim.x + threadIdx.x, stride = gridDim.x * (u64)blockDim.x;
    u64 leader = !first, goal = s.number * 4 * gridDim.x, began = now(), cycles = clock64(), written = 0;
    volatile u64* own = work + CALLS + 2 * s.number;
    if (leader && s.stages & WAIT) {
        u64 end = now() + s.most_ns;
        while (!page[RELEASED] && !work[LATE]) if (now() > end) work[LATE] = 1;
        __threadfence_system();
    }
    if (leader && !s.number) own[1] = page && s.stages & WAIT ? page[SEED] : s.seed;
    meet(work, goal += gridDim.x, s.most_ns);
    u64 sum = 0, count = s.number ? s.returned_count : 0;
    for (u64 n = 0; n < count; n++) sum = sum * 3 + digest(s.returned[n], first, stride);
    if (count) add((u64*)(own - 2), sum);
    meet(work, goal += gridDim.x, s.most_ns);
    u64 key = s.number ? mix(own[-1] + own[-2]) : own[1];
    if (leader && s.number) { own[1] = key; if (page) page[DIGESTS + s.number - 1] = own[-2]; }
    if (s.stages & MAKE) {
        for (u64 n = 0; n < s.given_count; n++) make(s.given[n], mix(key + n), first, stride);
        sum = 0;
        for (u64 n = first; n < s.flushed / 16; n += stride) {
            ulonglong2 pair = *(const ulonglong2*)(s.flush + n * 16);
            u64 x = (pair.x ^ key) * 0xBF58476D1CE4E5B9ull, y = (pair.y + key) * 0x94D049BB133111EBull;
            sum += x ^ x >> 32 ^ y ^ y >> 29;
        }
        add((u64*)own, sum);
    }
    if (s.stages & FILL)
        for (u64 n = first; n < s.flushed / 8; n += stride) ((u64*)s.flush)[n] = mix(n + 1);
    meet(work, goal += gridDim.x, s.most_ns);
    if (s.stages & WRITE) {
        written = clock64();  /* leaves in the caches what a call does */
        u64 longest = 0;
        for (u64 n = 0; n < s.given_count; n++) longest = max(longest, s.given[n].bytes);
        for (u64 n = 0; n < s.returned_count; n++) longest = max(longest, s.returned[n].count * s.returned[n].width);
        for (u64 n = first; n < longest / 16; n += stride) {
            ulonglong2 value = make_ulonglong2(n, key);
            for (u64 g = 0; g < s.given_count; g++) if (n < s.given[g].bytes / 16) {
                ulonglong2 read = ((const ulonglong2*)s.given[g].to)[n];
                value.x ^= read.x; value.y ^= read.y;
            }
            for (u64 r = 0; r < s.returned_count; r++)
                if (n < s.returned[r].count * s.returned[r].width / 16) ((ulonglong2*)s.returned[r].at)[n] = value;
        }
    }
    meet(work, goal += gridDim.x, s.most_ns);
    if (!leader) return;
    if (s.stages & WRITE) {
        work[WRITE_CYCLES] += clock64() - written; work[ALL_CYCLES] += clock64() - cycles; work[ALL_NS] += now() - began;
    }
    if (s.stages & LAST && page) { __threadfence_system(); page[ENDED] = work[LATE] ? 2 : 1; }
}
"""
