/* What larder_cs.h promises about one thread, its handlers, nested transactions and children. Exits with 0. */
#define _GNU_SOURCE
#include <larder_cs.h>

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(x)                                                        \
    do {                                                                \
        if (!(x)) {                                                     \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #x);     \
            exit(1);                                                    \
        }                                                               \
    } while (0)

static _Alignas(16) volatile int64_t words[8];
static volatile int32_t small;
static cs_domain *domain;

static void handler(int signal) {
    (void)signal;
    csBegin();
    CHECK(csST64C((void *)&words[7], words[7] + 1) == CS_STORED);
    csEnd();
}

static void handler_with_handle(int signal) {
    (void)signal;
    cs_handle inner;
    csxBegin(domain, &inner);
    csxEnd(&inner);
}

static void stay_here(void) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(sched_getcpu(), &set);
    sched_setaffinity(0, sizeof set, &set);
}

/* Inside a take-over its own thread begins elsewhere, and may not wait. */
static void taken(void *argument) {
    CHECK(csBegin() != *(int *)argument);
    csEnd();
    CHECK(csTakeOver(*(int *)argument, taken, argument) == EBUSY);
    words[0] = 20;
}

static void the_papers_form(void) {
    /* Nothing is open. */
    CHECK(!csValid());
    CHECK(csST64C((void *)&words[0], 1) == CS_INTERFERED && words[0] == 0);

    int cpu = csBegin();
    CHECK(cpu >= 0 && cpu < csIndices());
    CHECK(csValid());
    CHECK(csST64C((void *)&words[0], -2) == CS_STORED && words[0] == -2);
    CHECK(csST32C((void *)&small, -3) == CS_STORED && small == -3);
    CHECK(csCAS32C(4, -3, (void *)&small) == CS_STORED && small == 4);
    CHECK(csCAS32C(5, -3, (void *)&small) == CS_MISMATCH && small == 4);
    CHECK(csCAS64C(6, -2, (void *)&words[0]) == CS_STORED && words[0] == 6);
    CHECK(csCAS64C(7, -2, (void *)&words[0]) == CS_MISMATCH && words[0] == 6);
    uint64_t zero[2] = {0, 0}, two[2] = {8, 9};
    CHECK(csCAS128C(two, zero, (void *)&words[2]) == CS_STORED && words[2] == 8 && words[3] == 9);
    CHECK(csCAS128C(two, zero, (void *)&words[2]) == CS_MISMATCH);
    CHECK(csValid());
    csEnd();
    CHECK(!csValid());
    CHECK(csST64C((void *)&words[0], 1) == CS_INTERFERED && words[0] == 6);

    /* A nested transaction leaves the outer one invalid. */
    csBegin();
    csBegin();
    CHECK(csST64C((void *)&words[0], 10) == CS_STORED);
    csEnd();
    CHECK(csST64C((void *)&words[0], 11) == CS_INTERFERED && words[0] == 10);

    csBegin();
    csInvalidate();
    CHECK(!csValid());

    /* So does one in a signal handler. */
    signal(SIGUSR1, handler);
    csBegin();
    raise(SIGUSR1);
    CHECK(words[7] == 1);
    CHECK(!csValid());
    CHECK(csST64C((void *)&words[0], 12) == CS_INTERFERED);
    CHECK(csReopen() == 0);
    CHECK(csST64C((void *)&words[0], 12) == CS_STORED);
    csEnd();

    struct cs_statistics s;
    csStatistics(&s);
    CHECK(s.begun == 7 && s.taken_over == 0 && s.failed == 0 && s.reopened == 1 && s.invalid == 1 && s.abandoned == 3);

    cpu = csBegin();
    CHECK(csTakeOver(cpu, taken, &cpu) == 0 && words[0] == 20);
    CHECK(csST64C((void *)&words[0], 21) == CS_INTERFERED && words[0] == 20);
    CHECK(csTakeOver(-1, taken, &cpu) == EINVAL && csTakeOver(csIndices(), taken, &cpu) == EINVAL);
    csStatistics(&s);
    CHECK(s.taken_over == 1 && s.begun == 9);
}

static uint64_t restarts(void) {
    struct cs_restarts all[64];
    unsigned n = csRestarts(all, 64);
    CHECK(n > 10 && n <= 64 && csRestarts(all, 0) == n);
    uint64_t sum = 0;
    int begins = 0;
    for (unsigned i = 0; i < n; i++) {
        CHECK(all[i].name[0] && memchr(all[i].name, 0, sizeof all[i].name));
        begins += strcmp(all[i].name, "begin") == 0;
        sum += all[i].count;
    }
    CHECK(begins == 1);
    return sum;
}

static void nothing(int signal) { (void)signal; }

/* Signals that come all the time soon hit a sequence, which is started over, and counted. */
static void restarted(void) {
    static int64_t word;
    uint64_t before = restarts();
    signal(SIGALRM, nothing);
    struct itimerval often = {{0, 500}, {0, 500}}, never = {{0, 0}, {0, 0}};
    setitimer(ITIMER_REAL, &often, 0);
    for (long i = 0; i < 500000000 && (csMode() != CS_LOCKS || i < 1000000); i++) {
        csBegin();
        csST64C(&word, 1);
        csEnd();
        if (i % 100000 == 0 && restarts() > before) break;
    }
    setitimer(ITIMER_REAL, &never, 0);
    CHECK((restarts() > before) == (csMode() != CS_LOCKS));
}

static void take(void *area, void *argument) {
    *(int64_t *)argument = *(int64_t *)area;
    *(int64_t *)area = 100;
}

static void handles(int by) {
    domain = csxCreate(by, 64);
    cs_domain *other = csxCreate(CS_BY_CPU, 8);
    CHECK(domain && other && (uintptr_t)csxArea(domain, 0) % 64 == 0);
    cs_handle outer, inner;
    unsigned index = csxBegin(domain, &outer);
    CHECK(index < csxIndices(domain));
    int64_t *area = csxArea(domain, index);
    CHECK(csxST64(&outer, area, 5) == CS_STORED && *area == 5);
    CHECK(csxST32(&outer, area + 1, 6) == CS_STORED);
    CHECK(csxCAS32(&outer, 7, 6, area + 1) == CS_STORED && csxCAS32(&outer, 7, 6, area + 1) == CS_MISMATCH);
    CHECK(csxCAS64(&outer, 8, 5, area) == CS_STORED && csxCAS64(&outer, 8, 5, area) == CS_MISMATCH);
    uint64_t zero[2] = {0, 0}, two[2] = {1, 2};
    CHECK(csxCAS128(&outer, two, zero, area + 2) == CS_STORED && csxCAS128(&outer, two, zero, area + 2) == CS_MISMATCH);

    /* Another domain's transaction does not interfere, this one's does. */
    csxBegin(other, &inner);
    csxEnd(&inner);
    CHECK(csxValid(&outer));
    CHECK(csxST64(&outer, area, 9) == CS_STORED);
    if (by == CS_BY_CPU) {
        csxBegin(domain, &inner);
        CHECK(csxST64(&outer, area, 10) == CS_INTERFERED && *area == 9);
        CHECK(csxST64(&inner, area, 11) == CS_STORED);
        csxEnd(&inner);
        signal(SIGUSR2, handler_with_handle);
        csxBegin(domain, &outer);
        raise(SIGUSR2);
        CHECK(csxST64(&outer, area, 10) == CS_INTERFERED);
        CHECK(csxReopen(&outer) == 0);
        CHECK(csxST64(&outer, area, 10) == CS_STORED);
    }
    csxEnd(&outer);
    CHECK(csxST64(&outer, area, 12) == CS_INTERFERED);

    index = csxBegin(domain, &outer);
    int64_t taken = 0;
    CHECK(csxTakeOver(domain, index, take, &taken) == 0);
    CHECK(csxST64(&outer, area, 12) == CS_INTERFERED);
    CHECK(csxTakeOver(domain, csxIndices(domain), take, &taken) != 0);
    csxDestroy(other);
    csxDestroy(domain);
    csxDestroy(NULL);
    CHECK(csxCreate(7, 8) == NULL);
}

/* A child of fork goes on: transactions, take-overs and what it inherited. */
static void children(void) {
    domain = csxCreate(CS_BY_CPU, 64);
    csxAdd64(domain, 0, 3);
    cs_handle outer;
    unsigned index = csxBegin(domain, &outer);
    int64_t *area = csxArea(domain, index);
    pid_t child = fork();
    if (child == 0) {
        /* The transaction that was open goes on in both. */
        CHECK(csxST64(&outer, area + 1, 1) == CS_STORED);
        csxEnd(&outer);
        csxAdd64(domain, 0, 4);
        int64_t taken = 0;
        CHECK(csxTakeOver(domain, index, take, &taken) == 0 && taken == 7);
        _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    CHECK(csxST64(&outer, area + 1, 1) == CS_STORED);
    CHECK(*area == 3);
    csxDestroy(domain);
}

int main(void) {
    stay_here();
    the_papers_form();
    handles(CS_BY_CPU);
    handles(CS_BY_CONCURRENCY_ID);
    restarted();
    children();
    return 0;
}
