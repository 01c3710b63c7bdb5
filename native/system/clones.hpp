// Function multiversioning: the compiler makes a clone per generation of processors, and the right
// one is chosen when the module is loaded (too early for sanitizers, so it is off with them). Other
// compilers and processors only get the baseline.
#pragma once

#if defined(__x86_64__) && defined(__linux__) && defined(__GNUC__) && !defined(__clang__) && \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define LOWTIDE_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define LOWTIDE_CLONES
#endif
