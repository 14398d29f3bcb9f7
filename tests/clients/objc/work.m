// What an Objective-C program asks of its collector, spread over threads. Usage: work THREADS
//
// GCC's runtime describes the instances of a class by the types of its variables, and its own tables (classes, selectors,
// what a message calls) are in the heap as well. What it describes wrongly is not used here: arrays in an instance, and
// variables of classes made at run time, neither of which a collection finds, on the stock library either.
//
// The amount of work is the same for every number of threads, and so is what is printed: one line for each part.

#define GC_THREADS
#include <gc.h>
#import <objc/objc-exception.h>
#import <objc/runtime.h>
#import <objc/thr.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TASKS = 64, PRIME = 1000003 };

@interface Root {
    Class isa;
}
+ (id)new;
+ (id)initialize;
@end

@implementation Root
+ (id)new { return class_createInstance(self, 0); }
+ (id)initialize { return self; }
@end

@class Tree;
struct pair {
    int number;
    Tree *tree;
};

// Variables with references between others of all sizes.
@interface Tree : Root {
  @public
    int number;
    char tag;
    Tree *left;
    double weight;
    struct pair pair;
    short shorts[3];
    Tree *right;
    char *name;
}
- (long)sum;
@end

@implementation Tree
- (long)sum {
    long sum = number + pair.number + shorts[2] + (long)(2 * weight) + (long)strlen(name);
    if (left) sum += [left sum];
    if (right) sum += 3 * [right sum];
    if (pair.tree) sum += 5 * [pair.tree sum];
    return sum % PRIME;
}
@end

// References behind those of the class above.
@interface Wide : Tree {
  @public
    id first, second, third;
    int between;
    Tree *last;
}
@end

@implementation Wide
- (long)sum {
    return ([super sum] + [(Tree *)first sum] + 2 * [(Tree *)second sum] + 3 * [(Tree *)third sum] + between + [last sum]) % PRIME;
}
@end

static void begin(Tree *tree, int number) {
    char text[32];
    int length = snprintf(text, sizeof text, "tree %d", number);
    tree->name = objc_atomic_malloc(length + 1);
    strcpy(tree->name, text);
    tree->number = number;
    tree->weight = number / 2.0;
    tree->shorts[2] = number % 100;
}

static Tree *grow(int depth, int number) {
    Tree *tree = [Tree new];
    begin(tree, number);
    if (depth > 0) {
        tree->left = grow(depth - 1, number * 2 % 9973);
        tree->right = grow(depth - 1, number * 3 % 9973);
    } else {
        tree->pair.number = 7;
        tree->pair.tree = [Tree new];
        begin(tree->pair.tree, number ^ 5);
    }
    return tree;
}

static long trees(int task) {
    Tree *kept = grow(9, task);
    long sum = 0;
    for (int round = 0; round < 6; round++) sum += [grow(8, task + round) sum] + [kept sum];
    return sum;
}

static long wide_ones(int task) {
    long sum = 0;
    for (int round = 0; round < 40; round++) {
        Wide *wide = [Wide new];
        begin(wide, round);
        wide->first = grow(2, task);
        wide->second = grow(3, task);
        wide->third = grow(4, task);
        wide->between = task;
        wide->last = grow(3, round);
        sum += [wide sum];
    }
    return sum;
}

static long exceptions(int task) {
    long sum = 0;
    for (int i = 0; i < 50; i++) {
        @try {
            @throw grow(2, task + i);
        } @catch (Wide *wide) {
            abort();
        } @catch (Tree *caught) {
            sum += [caught sum];
        } @finally {
            sum += 1;
        }
    }
    return sum;
}

static long arrays(int task) {
    enum { HALF = 500 };
    id *array = objc_calloc(HALF, sizeof *array);
    for (int i = 0; i < HALF; i++) array[i] = grow(0, task + i);
    array = objc_realloc(array, 2 * HALF * sizeof *array);
    for (int i = HALF; i < 2 * HALF; i++) array[i] = grow(0, i);
    long sum = 0;
    for (int i = 0; i < 2 * HALF; i++) sum += [(Tree *)array[i] sum];
    return sum;
}

static Root *lock;
static long guarded_sum;
static long guarded(int task) {
    for (int i = 0; i < 100; i++) {
        @synchronized(lock) {
            guarded_sum += [grow(1, task + i) sum];
        }
    }
    return 0;
}

static const struct {
    const char *name;
    long (*work)(int task);
} parts[] = {{"trees", trees}, {"wide", wide_ones}, {"exceptions", exceptions}, {"arrays", arrays}, {"guarded", guarded}};
enum { PARTS = sizeof parts / sizeof *parts };

static int threads;
static long sums[TASKS][PARTS];

static void do_every(int first) {
    for (int task = first; task < TASKS; task += threads)
        for (int part = 0; part < PARTS; part++) sums[task][part] += parts[part].work(task);
}

// Threads that the collector makes.
static void *run(void *first) {
    do_every((int)(long)first);
    return NULL;
}

// Threads that the runtime makes, which the collector learns of from themselves.
static objc_mutex_t mutex;
static objc_condition_t changed;
static int working;

static void *work_registered(struct GC_stack_base *base, void *first) {
    if (GC_register_my_thread(base) != GC_SUCCESS) abort();
    do_every((int)(long)first);
    GC_unregister_my_thread();
    return NULL;
}

@interface Worker : Root
- (void)work:(id)first;
@end

@implementation Worker
- (void)work:(id)first {
    GC_call_with_stack_base(work_registered, (void *)first);
    objc_mutex_lock(mutex);
    working--;
    objc_condition_signal(changed);
    objc_mutex_unlock(mutex);
}
@end

int main(int argc, char **argv) {
    GC_INIT();
    GC_allow_register_threads();
    threads = argc > 1 ? atoi(argv[1]) : 1;
    lock = [Root new];

    pthread_t *ids = malloc(threads * sizeof *ids);
    for (long t = 0; t < threads; t++)
        if (pthread_create(&ids[t], NULL, run, (void *)t)) abort();
    for (int t = 0; t < threads; t++) pthread_join(ids[t], NULL);

    mutex = objc_mutex_allocate();
    changed = objc_condition_allocate();
    Worker *worker = [Worker new];
    working = threads;
    for (long t = 0; t < threads; t++)
        if (!objc_thread_detach(@selector(work:), worker, (id)t)) abort();
    objc_mutex_lock(mutex);
    while (working > 0) objc_condition_wait(changed, mutex);
    objc_mutex_unlock(mutex);

    for (int part = 0; part < PARTS; part++) {
        long sum = parts[part].work == guarded ? guarded_sum : 0;
        for (int task = 0; task < TASKS; task++) sum += sums[task][part];
        printf("%s %ld\n", parts[part].name, sum);
    }
    return 0;
}
