/* Clients' functions that do not return: exceptions and the ends of threads pass through the library's frames, and leave the thread, the
 * lock and the collector as they were. */
#define GC_THREADS
#define GC_NO_THREAD_REDIRECTS
#include <gc/gc.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <dlfcn.h>
#include <initializer_list>
#include <new>
#include <pthread.h>
#include <semaphore.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(condition)                                                                  \
    do {                                                                                  \
        if (!(condition)) {                                                               \
            std::fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition);  \
            _exit(1);                                                                     \
        }                                                                                 \
    } while (0)

/* libgc lets all of it pass as well, but leaves a thread blocked that left GC_do_blocking so, a lock locked, and does not become blocked
 * again. */
static bool is_larder;

static std::atomic<int> destroyed;

/* In a frame further out. */
struct Outer {
    ~Outer() { destroyed++; }
};

static long *make(long number) {
    long *object = static_cast<long *>(GC_malloc(sizeof(long)));
    *object = number;
    return object;
}

/* The number of collections that a thread, by its handle, was stopped for by a signal. */
static std::atomic<pthread_t> watched;
static std::atomic<int> suspensions;
static void GC_CALLBACK on_thread(GC_EventType event, void *thread) {
    if (event == GC_EVENT_THREAD_SUSPENDED && reinterpret_cast<pthread_t>(thread) == watched) suspensions++;
}

static void *collect_elsewhere(void *) {
    for (int i = 0; i < 3; i++) {
        GC_gcollect();
        for (int k = 0; k < 1000; k++) *make(k) = -1;
    }
    return nullptr;
}

/* Whether other threads' collections stop this one, as they do with one that is not blocked. */
static bool is_stopped_by_others() {
    pthread_t other;
    watched = pthread_self();
    suspensions = 0;
    std::atomic<bool> done{false};
    struct Both {
        std::atomic<bool> *done;
    } both{&done};
    CHECK(GC_pthread_create(&other, nullptr, [](void *argument) -> void * {
              collect_elsewhere(nullptr);
              *static_cast<Both *>(argument)->done = true;
              return nullptr;
          }, &both) == 0);
    while (!done) {}
    CHECK(GC_pthread_join(other, nullptr) == 0);
    return suspensions != 0;
}

/* What a thread does with the heap that is not blocked. */
static void use_heap() {
    if (!is_larder) return;
    long *object = make(17);
    CHECK(is_stopped_by_others());
    GC_gcollect();
    CHECK(*object == 17);
}

/* --- Threads that end in a blocking region. */

static void *end_thread(void *argument) { pthread_exit(argument); }

static sem_t waits, never;
static void *wait_for_ever(void *) {
    sem_post(&waits);
    for (;;) sem_wait(&never);
}

struct UsesHeap {
    ~UsesHeap() {
        destroyed++;
        use_heap();
    }
};

static void *exits(void *argument) {
    UsesHeap outer;
    return GC_do_blocking(end_thread, argument);
}

static void *is_cancelled(void *argument) {
    UsesHeap outer;
    return GC_do_blocking(wait_for_ever, argument);
}

static void *exits_while_active(void *argument) {
    UsesHeap outer;
    return GC_do_blocking([](void *a) { return GC_call_with_gc_active(end_thread, a); }, argument);
}

static void ends_of_threads() {
    pthread_t thread;
    void *result;
    for (auto body : {exits, exits_while_active}) {
        destroyed = 0;
        CHECK(GC_pthread_create(&thread, nullptr, body, &result) == 0 && GC_pthread_join(thread, &result) == 0);
        CHECK(result == &result && destroyed == 1);
    }
    destroyed = 0;
    CHECK(GC_pthread_create(&thread, nullptr, is_cancelled, nullptr) == 0);
    while (sem_wait(&waits) != 0) {}
    CHECK(GC_pthread_cancel(thread) == 0 && GC_pthread_join(thread, &result) == 0);
    CHECK(result == PTHREAD_CANCELED && destroyed == 1);
}

/* --- Exceptions. */

static void *throws(void *argument) { throw argument; }

template <typename F> static bool passes(F f) {
    destroyed = 0;
    try {
        Outer outer;
        f();
    } catch (void *thrown) {
        CHECK(thrown == &destroyed && destroyed == 1);
        return true;
    }
    return false;
}

static void out_of_regions() {
    long *object = make(23);
    CHECK(passes([] { GC_call_with_gc_active(throws, &destroyed); }));
    if (is_larder) {
        CHECK(passes([] { GC_do_blocking(throws, &destroyed); }));
        use_heap();
        CHECK(passes([] {
            GC_do_blocking([](void *a) { return GC_do_blocking(throws, a); }, &destroyed);
        }));
        use_heap();
        CHECK(passes([] {
            GC_do_blocking([](void *a) { return GC_call_with_gc_active(throws, a); }, &destroyed);
        }));
        use_heap();
        /* Caught in the region, which goes on. The other thread is made by hand: this one must not use the heap. */
        GC_do_blocking([](void *a) -> void * {
            try {
                GC_call_with_gc_active(throws, a);
                CHECK(false);
            } catch (void *) {}
            pthread_t other;
            watched = pthread_self();
            suspensions = 0;
            CHECK(pthread_create(&other, nullptr, [](void *) -> void * {
                      GC_stack_base base;
                      CHECK(GC_get_stack_base(&base) == GC_SUCCESS && GC_register_my_thread(&base) == GC_SUCCESS);
                      collect_elsewhere(nullptr);
                      CHECK(GC_unregister_my_thread() == GC_SUCCESS);
                      return nullptr;
                  }, nullptr) == 0);
            CHECK(pthread_join(other, nullptr) == 0 && suspensions == 0);
            return nullptr;
        }, &destroyed);
        use_heap();
    }
    CHECK(*object == 23);
}

static void out_of_the_lock() {
    CHECK(passes([] {
        GC_call_with_stack_base([](GC_stack_base *, void *a) -> void * { throw a; }, &destroyed);
    }));
    if (!is_larder) return;
    for (int i = 0; i < 2; i++) CHECK(passes([] { GC_call_with_alloc_lock(throws, &destroyed); }));
    use_heap();
    int here = 0;
    CHECK(GC_call_with_alloc_lock([](void *a) { return a; }, &here) == &here);
}

static void *GC_CALLBACK no_memory(size_t) { throw std::bad_alloc(); }

static void out_of_memory() {
    auto before = GC_get_oom_fn();
    GC_set_oom_fn(no_memory);
    GC_set_warn_proc(GC_ignore_warn_proc);
    for (int i = 0; i < 2; i++) {
        try {
            GC_malloc(SIZE_MAX / 4);
            CHECK(false);
        } catch (std::bad_alloc &) {}
    }
    GC_set_oom_fn(before);
    use_heap();
}

static bool armed;
static void GC_CALLBACK throwing(void *, void *data) {
    if (!armed) return;
    armed = false;
    throw data;
}

static void __attribute__((noinline)) drop_one() { GC_register_finalizer(GC_malloc(100), throwing, &destroyed, nullptr, nullptr); }

/* The collector runs finalizers itself. One that does not return leaves the rest in the queue. */
static void out_of_finalizers() {
    for (int i = 0; i < 100; i++) drop_one();
    armed = true;
    CHECK(passes([] {
        for (int i = 0; i < 10; i++) GC_gcollect();
    }));
    GC_invoke_finalizers();
    use_heap();
}

static void out_of_allocation() {
    for (int i = 0; i < 100; i++) drop_one();
    armed = true;
    CHECK(passes([] {
        for (int i = 0; i < 1000000 && armed; i++) *static_cast<char *>(GC_malloc(1000)) = 1;
    }));
    GC_invoke_finalizers();
    use_heap();
}

int main() {
    GC_set_handle_fork(1);
    GC_INIT();
    GC_allow_register_threads();
    is_larder = dlsym(RTLD_DEFAULT, "GC_print_backtrace") != nullptr;
    GC_set_on_thread_event(on_thread);
    sem_init(&waits, 0, 0);
    sem_init(&never, 0, 0);
    ends_of_threads();
    out_of_regions();
    out_of_the_lock();
    out_of_memory();
    /* Each in a process in which no finalizer has thrown before. */
    int status;
    for (auto test : {out_of_finalizers, out_of_allocation}) {
        int child = fork();
        if (child == 0) {
            test();
            _exit(7);
        }
        CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 7);
    }
    return 0;
}
