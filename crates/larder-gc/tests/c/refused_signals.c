/* A sandbox that forbids the calls by which one thread signals another: the program is told so, and ends. A collection that took the other
 * threads for gone freed what they alone referred to. */
#include "check.h"
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Refuses the stop signal to threads, and nothing else: the abort is to be seen. */
static int refuse(int signal) {
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_tgkill, 1, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_rt_tgsigqueueinfo, 0, 3),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[2])),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)signal, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0) == 0;
}

static pthread_barrier_t both;
static volatile int done;
/* It runs, and its list lies on its stack alone. */
static void *thread(void *unused) {
    GC_word *volatile kept = GC_malloc(64);
    *kept = 12345;
    pthread_barrier_wait(&both);
    while (!done) CHECK(*kept == 12345);
    return unused;
}

static void refused(void) {
    CHECK(pthread_barrier_init(&both, 0, 2) == 0);
    pthread_t t;
    CHECK(GC_pthread_create(&t, 0, thread, 0) == 0);
    pthread_barrier_wait(&both);
    CHECK(refuse(GC_get_suspend_signal()));
    GC_gcollect();
    for (int i = 0; i < 100000; i++) memset(GC_malloc(64), 0, 64);
    done = 1;
}

int main(void) {
    GC_init();
    const char *printed;
    int status = in_child(refused, &printed);
    CHECK(ABORTED(status));
    if (is_larder()) CHECK(occurs("larder: cannot stop thread ", printed) == 1 && occurs("errno 1)", printed) == 1);
    return 0;
}
