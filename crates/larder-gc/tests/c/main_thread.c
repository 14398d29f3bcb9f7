/* The main thread is a thread like others: it may end before its process, or be unregistered, and it is not there in a child
 * that another thread forked. Its record may become another thread's then, whose stack begins elsewhere. */
#include "lists.h"
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

enum { LENGTH = 200 };

/* More static data than collections read without asking the kernel what of it was ever written. */
static GC_word *kept[1 << 17];
static pthread_t main_thread;

static void *after_main(void *list) {
    /* The kernel has ended it, and it will not answer to any signal. */
    CHECK(pthread_join(main_thread, 0) == 0);
    for (int i = 0; i < 5; i++) {
        GC_gcollect();
        use_heap();
    }
    CHECK(length_of(list) == LENGTH && length_of(kept[1 << 16]) == LENGTH);
    exit(7);
}

static void start(void) {
    pthread_t thread;
    GC_init();
    alarm(600);
    main_thread = pthread_self();
    kept[1 << 16] = make_list(LENGTH);
    CHECK(GC_pthread_create(&thread, 0, after_main, make_list(LENGTH)) == 0);
}

static void ends(void) {
    start();
    GC_pthread_exit(0);
}

static void ends_by_itself(void) {
    start();
    pthread_exit(0);
}

/* Where the calling thread's stack begins is where the collector takes it to begin, whatever GC_stackbottom says. */
static void check_own_stack(void) {
    struct GC_stack_base known, told;
    void *handle = GC_get_my_stackbottom(&known);
    char *const main_base = GC_stackbottom;
    char local = 0;
    CHECK(handle && known.mem_base != main_base && (char *)known.mem_base > &local);
    CHECK((char *)known.mem_base - &local < 1 << 20);
    told.mem_base = (char *)known.mem_base;
    GC_alloc_lock();
    GC_set_stackbottom(handle, &told);
    GC_alloc_unlock();
    CHECK(GC_stackbottom == main_base);
    CHECK(GC_get_my_stackbottom(&known) == handle && known.mem_base == told.mem_base);
    GC_word *list = make_list(LENGTH);
    for (int i = 0; i < 5; i++) {
        GC_gcollect();
        use_heap();
    }
    CHECK(length_of(list) == LENGTH);
}

static void *registers_itself(void *unused) {
    struct GC_stack_base base;
    CHECK(GC_get_stack_base(&base) == GC_SUCCESS && GC_register_my_thread(&base) == GC_SUCCESS);
    check_own_stack();
    CHECK(GC_unregister_my_thread() == GC_SUCCESS);
    return unused;
}

static void unregistered(void) {
    pthread_t thread;
    GC_init();
    GC_allow_register_threads();
    alarm(600);
    kept[1 << 16] = make_list(LENGTH);
    CHECK(GC_unregister_my_thread() == GC_SUCCESS && !GC_thread_is_registered());
    for (int i = 0; i < 3; i++) CHECK(pthread_create(&thread, 0, registers_itself, 0) == 0 && pthread_join(thread, 0) == 0);
    struct GC_stack_base base;
    CHECK(GC_get_stack_base(&base) == GC_SUCCESS && GC_register_my_thread(&base) == GC_SUCCESS);
    GC_word *list = make_list(LENGTH);
    GC_gcollect();
    use_heap();
    CHECK(length_of(list) == LENGTH && length_of(kept[1 << 16]) == LENGTH);
    exit(7);
}

static void *in_thread_of_child(void *unused) {
    check_own_stack();
    return unused;
}

static void *forks(void *unused) {
    int status;
    int child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        alarm(600);
        check_own_stack();
        pthread_t thread;
        for (int i = 0; i < 3; i++)
            CHECK(GC_pthread_create(&thread, 0, in_thread_of_child, 0) == 0 && GC_pthread_join(thread, 0) == 0);
        _exit(7);
    }
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 7);
    return unused;
}

static void forked_by_another(void) {
    pthread_t thread;
    GC_set_handle_fork(1);
    GC_init();
    CHECK(GC_pthread_create(&thread, 0, forks, 0) == 0 && GC_pthread_join(thread, 0) == 0);
    exit(7);
}

static void check_child(void (*f)(void)) {
    const char *printed;
    int status = in_child(f, &printed);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 7) {
        fprintf(stderr, "status %#x: %s\n", status, printed);
        exit(1);
    }
}

int main(void) {
    check_child(ends);
    /* libgc sends the thread that is gone a signal at the next collection, and stops the process when that fails; where
     * GC_pthread_exit was called it collects no more. Here its record goes when it ends. */
    if (is_larder()) check_child(ends_by_itself);
    check_child(unregistered);
    check_child(forked_by_another);
    return 0;
}
