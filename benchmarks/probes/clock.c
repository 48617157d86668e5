/* A clock that jumps for the processes that load this (LD_PRELOAD), and for no other.

   The file that CLOCK_JUMP names holds two int64: how many nanoseconds the clock jumps, and when it does, in nanoseconds of
   CLOCK_REALTIME (0: not yet). It is mapped, so the jump is seen at once by all of them. What is shifted: the time of day,
   deadlines on it, and the times of files that were changed after the jump, as the kernel would have written them. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <errno.h>
#include <unistd.h>

#define SECOND INT64_C(1000000000)
#define SLICE (SECOND / 10)

static const volatile int64_t *jump;

__attribute__((constructor)) static void find(void)
{
    const char *name = getenv("CLOCK_JUMP");
    int file = name ? open(name, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0) return;
    void *page = mmap(NULL, 2 * sizeof(int64_t), PROT_READ, MAP_SHARED, file, 0);
    if (page != MAP_FAILED) jump = page;
    close(file);
}

static int64_t shift(int64_t at) { return jump && jump[1] && at >= jump[1] ? jump[0] : 0; }

static int64_t number(const struct timespec *at) { return at->tv_sec * SECOND + at->tv_nsec; }

static struct timespec parts(int64_t at)
{
    struct timespec split = {at / SECOND, at % SECOND};
    return split;
}

static int64_t now(clockid_t clock)
{
    struct timespec at;
    syscall(SYS_clock_gettime, clock, &at);
    return number(&at);
}

int clock_gettime(clockid_t clock, struct timespec *at)
{
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
    int code = real(clock, at);
    if (!code && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE || clock == CLOCK_TAI))
        *at = parts(number(at) + shift(number(at)));
    return code;
}

int gettimeofday(struct timeval *restrict at, void *restrict zone)
{
    (void)zone;
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    at->tv_sec = now.tv_sec;
    at->tv_usec = now.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *at)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (at) *at = now.tv_sec;
    return now.tv_sec;
}

/* Deadlines: waited for in slices, since the jump may come meanwhile. Whoever uses the monotonic clock names less than
   thirty years. */
#define WAIT(deadline, call)                                                                   \
    for (;;) {                                                                                 \
        int64_t real = now(CLOCK_REALTIME), left = number(deadline) - real - shift(real);      \
        struct timespec slice = parts(real + (left < SLICE ? left : SLICE));                   \
        int code = (call);                                                                     \
        if (code != ETIMEDOUT || left <= SLICE) return code;                                   \
    }

int pthread_cond_timedwait(pthread_cond_t *restrict cond, pthread_mutex_t *restrict mutex, const struct timespec *restrict at)
{
    if (at->tv_sec < 1000000000) return pthread_cond_clockwait(cond, mutex, CLOCK_MONOTONIC, at);
    WAIT(at, pthread_cond_clockwait(cond, mutex, CLOCK_REALTIME, &slice))
}

static int wait_for(sem_t *semaphore, const struct timespec *at)
{
    return sem_clockwait(semaphore, CLOCK_REALTIME, at) ? errno : 0;
}

static int timed(sem_t *semaphore, const struct timespec *at) { WAIT(at, wait_for(semaphore, &slice)) }

int sem_timedwait(sem_t *restrict semaphore, const struct timespec *restrict at)
{
    int code = timed(semaphore, at);
    if (code) errno = code;
    return code ? -1 : 0;
}

static int seen(int code, struct stat *file)
{
    if (code) return code;
    file->st_mtim = parts(number(&file->st_mtim) + shift(number(&file->st_mtim)));
    file->st_ctim = parts(number(&file->st_ctim) + shift(number(&file->st_ctim)));
    return 0;
}

int fstatat(int folder, const char *restrict path, struct stat *restrict file, int flags)
{
    return seen(syscall(SYS_newfstatat, folder, path, file, flags) ? -1 : 0, file);
}
int stat(const char *restrict path, struct stat *restrict file) { return fstatat(AT_FDCWD, path, file, 0); }
int lstat(const char *restrict path, struct stat *restrict file) { return fstatat(AT_FDCWD, path, file, AT_SYMLINK_NOFOLLOW); }
int fstat(int descriptor, struct stat *file) { return fstatat(descriptor, "", file, AT_EMPTY_PATH); }
int stat64(const char *restrict path, struct stat64 *restrict file) { return stat(path, (struct stat *)file); }
int lstat64(const char *restrict path, struct stat64 *restrict file) { return lstat(path, (struct stat *)file); }
int fstat64(int descriptor, struct stat64 *file) { return fstat(descriptor, (struct stat *)file); }
int fstatat64(int folder, const char *restrict path, struct stat64 *restrict file, int flags)
{
    return fstatat(folder, path, (struct stat *)file, flags);
}
