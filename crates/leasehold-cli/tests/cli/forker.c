// Starts processes for the tests of `leasehold run`. Every process ends by itself after LIMIT_S seconds, and together they
// fork at most MAX_FORKS times.
//
//   forker chains N FILE   N chains: each process forks its successor, which leads a new session, and exits
//   forker crowd N FILE    N processes that wait, half of them in sessions of their own
//   forker deep N FILE     N processes that wait, each the child of the one before it
//
// All ignore SIGTERM. FILE begins with the number of forks so far, as a 64-bit integer.

#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { MAX_FORKS = 300000, LIMIT_S = 40 };

static struct { int64_t forks; int64_t until_s; } *shared;

static int64_t now_s(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec;
}

// Forks, unless a limit is reached: then the process ends.
static pid_t fork_within_limits(void) {
    if (__atomic_add_fetch(&shared->forks, 1, __ATOMIC_SEQ_CST) > MAX_FORKS || now_s() >= shared->until_s) {
        _exit(0);
    }
    pid_t pid = fork();
    if (pid == 0) alarm(LIMIT_S);
    return pid;
}

static void wait_for_the_end(void) {
    for (;;) pause();
}

static void chain(void) {
    for (;;) {
        setsid();
        if (fork_within_limits() != 0) _exit(0);
    }
}

int main(int argc, char **argv) {
    if (argc != 4) return 2;
    int count = atoi(argv[2]);
    int fd = open(argv[3], O_RDWR | O_CREAT, 0600);
    if (fd < 0 || ftruncate(fd, 4096) != 0) return 3;
    shared = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (shared == MAP_FAILED) return 4;
    shared->until_s = now_s() + LIMIT_S;
    signal(SIGTERM, SIG_IGN);
    alarm(LIMIT_S);
    for (int i = 0; i < count; i++) {
        pid_t pid = fork_within_limits();
        if (pid < 0) return 6;
        if (strcmp(argv[1], "deep") == 0) {
            if (pid > 0) break;
        } else if (pid == 0) {
            if (strcmp(argv[1], "chains") == 0) chain();
            if (i % 2 == 1) setsid();
            wait_for_the_end();
        }
        if (i == count - 1) {
            puts("ready");
            fflush(stdout);
        }
    }
    wait_for_the_end();
}
