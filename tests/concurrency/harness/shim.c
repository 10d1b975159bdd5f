/* Stands between a process and its files, and lets what it is told to fail: LD_PRELOAD, with QSTORE_SHIM naming the file
   that says what. Only files whose path has ".sqlite" in it are touched, of the one process that is named. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

enum { READS = 1, WRITES = 2, SYNCS = 4 };
enum { MAIN = 1, LOG = 2, INDEX = 4 };
enum { FAIL_ONCE = 1, FAIL_ON = 2, DIE = 3, DIE_HALF_WAY = 4 };

struct control { volatile long pid, mode, number, calls, files, countdown, happened; };
static struct control *control;

__attribute__((constructor)) static void attach(void)
{
    const char *path = getenv("QSTORE_SHIM");
    int file = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
    if (file < 0)
        return;
    void *found = mmap(NULL, sizeof(struct control), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    control = found == MAP_FAILED ? NULL : found;
}

static int which(int file)
{
    char link[40] = "/proc/self/fd/", digits[16], path[4096];
    int at = sizeof(digits) - 1;
    digits[at] = 0;
    do digits[--at] = '0' + file % 10; while (file /= 10);
    strcat(link, digits + at);
    ssize_t length = readlink(link, path, sizeof(path) - 1);
    if (length < 0)
        return 0;
    path[length] = 0;
    if (!strstr(path, ".sqlite"))
        return 0;
    if (strstr(path, "-turns") || strstr(path, ".lock"))
        return 0;
    return strstr(path, "-wal") ? LOG : strstr(path, "-shm") || strstr(path, "-tshm") ? INDEX : MAIN;
}

/* What is to happen with a call: 0 nothing, or the mode. */
static int befalls(int file, int call)
{
    if (!control || control->pid != getpid() || !(control->calls & call))
        return 0;
    int saved = errno;
    int hit = which(file) & control->files;
    errno = saved;
    if (!hit || __sync_sub_and_fetch(&control->countdown, 1) > 0)
        return 0;
    int mode = control->mode;
    if (mode == FAIL_ONCE)
        control->pid = 0;
    control->happened++;
    if (mode == DIE)
        kill(getpid(), SIGKILL);
    errno = control->number;
    return mode;
}

#define REAL(name) static __typeof__(&name) real; if (!real) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)

#define WRITER(name, type, size_type, offset_type) \
    ssize_t name(int file, const type *from, size_type size, offset_type at) \
    { \
        REAL(name); \
        int mode = befalls(file, WRITES); \
        if (mode) real(file, from, size / 2, at); \
        if (mode == DIE_HALF_WAY) kill(getpid(), SIGKILL); \
        if (mode) errno = control->number; \
        return mode ? -1 : real(file, from, size, at); \
    }
WRITER(pwrite, void, size_t, off_t)
WRITER(pwrite64, void, size_t, off64_t)
WRITER(pwritev, struct iovec, int, off_t)
WRITER(pwritev64, struct iovec, int, off64_t)

#define READER(name, offset_type) \
    ssize_t name(int file, void *to, size_t size, offset_type at) \
    { \
        REAL(name); \
        return befalls(file, READS) ? -1 : real(file, to, size, at); \
    }
READER(pread, off_t)
READER(pread64, off64_t)

#define SYNCER(name) \
    int name(int file) \
    { \
        REAL(name); \
        return befalls(file, SYNCS) ? -1 : real(file); \
    }
SYNCER(fsync)
SYNCER(fdatasync)

#define CUTTER(name, offset_type) \
    int name(int file, offset_type size) \
    { \
        REAL(name); \
        return befalls(file, WRITES) ? -1 : real(file, size); \
    }
CUTTER(ftruncate, off_t)
CUTTER(ftruncate64, off64_t)
