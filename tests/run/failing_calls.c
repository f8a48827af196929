/* Lets one call on a file below FAULT_ROOT fail with the error FAULT_CODE: the FAULT_AT-th of the process, not of its children. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static long left = -1;
static int code;
static const char *root;

__attribute__((constructor)) static void begin(void) {
  if (!getenv("FAULT_AT")) return; /* a child */
  left = atol(getenv("FAULT_AT"));
  code = atoi(getenv("FAULT_CODE"));
  root = getenv("FAULT_ROOT");
  unsetenv("FAULT_AT");
}

static int fails(const char *path) {
  if (left < 0 || (path[0] == '/' && !strstr(path, root)) || __atomic_fetch_sub(&left, 1, __ATOMIC_SEQ_CST))
    return 0;
  errno = code;
  return 1;
}

static int descriptor_fails(int descriptor) {
  char link[64], path[4096] = "/";
  if (left < 0) return 0;
  snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
  path[readlink(link, path, sizeof path - 1) < 0 ? 1 : sizeof path - 1] = 0;
  return fails(path);
}

#define CALL(result, name, parameters, arguments, failed)                     \
  result name parameters {                                                    \
    result(*real) parameters = (result(*) parameters)dlsym(RTLD_NEXT, #name); \
    return failed ? -1 : real arguments;                                      \
  }
CALL(ssize_t, read, (int d, void *b, size_t n), (d, b, n), descriptor_fails(d))
CALL(ssize_t, write, (int d, const void *b, size_t n), (d, b, n), descriptor_fails(d))
CALL(int, fsync, (int d), (d), descriptor_fails(d))
CALL(int, rename, (const char *a, const char *b), (a, b), fails(b))
CALL(int, mkdir, (const char *p, mode_t m), (p, m), fails(p))
CALL(int, unlink, (const char *p), (p), fails(p))
CALL(int, open64, (const char *p, int f, mode_t m), (p, f, m), fails(p))
CALL(int, openat64, (int d, const char *p, int f, mode_t m), (d, p, f, m), fails(p))
