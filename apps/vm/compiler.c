/*
 * compiler - what a compiler allocates, after _213_javac: one thread, or many that each compile units of their own.
 *
 * usage: compiler [OPTIONS] [UNITS]
 *
 * A unit's source is made up by a generator of random functions. It is cut into tokens, parsed into a tree, its names are
 * looked up in a table that grows with the unit, the tree is folded into a new one, and stack code is emitted. Tree, folded
 * tree and code are all evaluated with the same arguments; they must agree. UNITS are shared out among the threads.
 */
#include "vm.h"

static long units = 400;

enum { FUNCTIONS = 30, NAMES = 64, BUCKETS = 32, SOURCE = 4096 };

/* Tokens: a list; word 1 is the kind (a character), word 2 the value. */
/* Trees: two children, and the name's entry in the table; word 1 is the kind, word 2 the value. */
/* Entries: the next one of the bucket; word 1 is how often it was used. */
enum { LEFT, RIGHT, NAME };

typedef struct {
    char text[SOURCE];
    int length;
} Source;

static void write_expression(Source *s, uint64_t *random, int depth) {
    uint64_t r = random_next(random);
    if (depth == 0 || r % 8 == 0 || s->length > SOURCE - 200) {
        if (r >> 8 & 1)
            s->length += sprintf(s->text + s->length, "%d", (int)(r >> 16 & 0xff));
        else
            s->length += sprintf(s->text + s->length, "n%d", (int)(r >> 16) & (NAMES - 1));
        return;
    }
    s->text[s->length++] = '(';
    write_expression(s, random, depth - 1);
    s->text[s->length++] = "+-*+"[r >> 8 & 3];
    write_expression(s, random, depth - 1);
    s->text[s->length++] = ')';
    s->text[s->length] = 0;
}

static Ref token(Thread *thread, uint64_t kind, uint64_t value) {
    Ref made = make(thread, 1, 3, 0);
    *word_of(made, 1) = kind;
    *word_of(made, 2) = value;
    return made;
}

/* The list of tokens, first to last. */
static Ref scan_source(Thread *thread, const char *at) {
    ROOTS(thread, 2);
    root[0] = root[1] = token(thread, '^', 0);
    while (*at) {
        char kind = *at++;
        uint64_t value = 0;
        if (kind == 'n' || (kind >= '0' && kind <= '9')) {
            if (kind != 'n')
                at--, kind = '0';
            while (*at >= '0' && *at <= '9')
                value = 10 * value + (*at++ - '0');
        }
        Ref next = token(thread, kind, value);
        set(thread, root[1], 0, next);
        root[1] = next;
    }
    Ref first = get(root[0], 0);
    DONE(thread);
    return first;
}

static Ref tree(Thread *thread, uint64_t kind, uint64_t value) {
    Ref made = make(thread, 3, 3, 0);
    *word_of(made, 1) = kind;
    *word_of(made, 2) = value;
    return made;
}

/* The entry of a name in the unit's table, which gets it if it is new. */
static Ref look_up(Thread *thread, Ref *table, uint64_t name) {
    for (Ref entry = get(*table, name % BUCKETS); entry; entry = get(entry, 0))
        if (*word_of(entry, 0) == name) {
            ++*word_of(entry, 1);
            return entry;
        }
    Ref entry = make(thread, 1, 2, name);
    *word_of(entry, 1) = 1;
    set(thread, entry, 0, get(*table, name % BUCKETS));
    set(thread, *table, name % BUCKETS, entry);
    return entry;
}

/* Parses from `*tokens`, which moves on. */
static Ref parse(Thread *thread, Ref *table, Ref *tokens) {
    ROOTS(thread, 2);
    uint64_t kind = *word_of(*tokens, 1), value = *word_of(*tokens, 2);
    *tokens = get(*tokens, 0);
    if (kind == 'n') {
        root[1] = look_up(thread, table, value);
        root[0] = tree(thread, 'n', value);
        set(thread, root[0], NAME, root[1]);
    } else if (kind == '0') {
        root[0] = tree(thread, '0', value);
    } else {
        if (kind != '(')
            fail("'%c' where an expression begins: a token was lost", (int)kind);
        root[0] = tree(thread, 0, 0);
        root[1] = parse(thread, table, tokens);
        set(thread, root[0], LEFT, root[1]);
        *word_of(root[0], 1) = *word_of(*tokens, 1);
        *tokens = get(*tokens, 0);
        root[1] = parse(thread, table, tokens);
        set(thread, root[0], RIGHT, root[1]);
        if (*word_of(*tokens, 1) != ')')
            fail("'%c' where ')' must be: a token was lost", (int)*word_of(*tokens, 1));
        *tokens = get(*tokens, 0);
    }
    Ref result = root[0];
    DONE(thread);
    return result;
}

static uint64_t apply(uint64_t kind, uint64_t left, uint64_t right) {
    return kind == '+' ? left + right : kind == '-' ? left - right : left * right;
}

static uint64_t argument(uint64_t name) {
    return mixed(name) >> 40;
}

static uint64_t evaluate(Ref at) {
    uint64_t kind = *word_of(at, 1), value = *word_of(at, 2);
    if (kind == '0')
        return value;
    if (kind == 'n') {
        if (*word_of(get(at, NAME), 0) != value)
            fail("name %" PRIu64 " has the entry of %" PRIu64, value, *word_of(get(at, NAME), 0));
        return argument(value);
    }
    return apply(kind, evaluate(get(at, LEFT)), evaluate(get(at, RIGHT)));
}

/* A new tree in which operations on constants are done. */
static Ref fold(Thread *thread, Ref from) {
    ROOTS(thread, 4);
    root[0] = from;
    uint64_t kind = *word_of(from, 1);
    if (kind == '0' || kind == 'n') {
        root[3] = tree(thread, kind, *word_of(root[0], 2));
        set(thread, root[3], NAME, get(root[0], NAME));
    } else {
        root[1] = fold(thread, get(root[0], LEFT));
        root[2] = fold(thread, get(root[0], RIGHT));
        if (*word_of(root[1], 1) == '0' && *word_of(root[2], 1) == '0') {
            uint64_t value = apply(kind, *word_of(root[1], 2), *word_of(root[2], 2));
            root[3] = tree(thread, '0', value);
        } else {
            root[3] = tree(thread, kind, 0);
            set(thread, root[3], LEFT, root[1]);
            set(thread, root[3], RIGHT, root[2]);
        }
    }
    Ref result = root[3];
    DONE(thread);
    return result;
}

/* Code: words behind each other in an object that is replaced by one of twice the length when it is full. Word 0 is how much
 * is used. */
static void emit(Thread *thread, Ref *code, uint64_t kind, uint64_t value) {
    uint64_t used = *word_of(*code, 0), room = (*(uintptr_t *)*code >> 32) / 8 - 2;
    if (used + 2 > room) {
        Ref longer = make(thread, 0, 1 + 2 * room, used);
        memcpy(word_of(longer, 1), word_of(*code, 1), 8 * used);
        *code = longer;
    }
    *word_of(*code, 1 + used) = kind;
    *word_of(*code, 2 + used) = value;
    *word_of(*code, 0) = used + 2;
}

static void generate(Thread *thread, Ref *code, Ref from) {
    ROOTS(thread, 1);
    root[0] = from;
    if (get(root[0], LEFT)) {
        generate(thread, code, get(root[0], LEFT));
        generate(thread, code, get(root[0], RIGHT));
    }
    emit(thread, code, *word_of(root[0], 1), *word_of(root[0], 2));
    DONE(thread);
}

static uint64_t execute(Ref code) {
    uint64_t stack[64], used = *word_of(code, 0);
    int top = 0;
    for (uint64_t at = 0; at < used; at += 2) {
        uint64_t kind = *word_of(code, 1 + at), value = *word_of(code, 2 + at);
        if (kind == '0' || kind == 'n') {
            stack[top++] = kind == '0' ? value : argument(value);
        } else {
            top--;
            stack[top - 1] = apply(kind, stack[top - 1], stack[top]);
        }
    }
    return stack[0];
}

static uint64_t compile_unit(Thread *thread, uint64_t number) {
    uint64_t random = number, sum = 0, used = 0;
    ROOTS(thread, 7);
    root[0] = make(thread, BUCKETS, 1, number);
    root[1] = make(thread, 2 * FUNCTIONS, 1, number);
    for (int f = 0; f < FUNCTIONS; f++) {
        Source source = {.length = 0};
        write_expression(&source, &random, 6);
        root[2] = scan_source(thread, source.text);
        root[3] = parse(thread, &root[0], &root[2]);
        root[4] = fold(thread, root[3]);
        root[5] = make(thread, 0, 17, 0);
        generate(thread, &root[5], root[4]);
        /* The unit keeps its folded trees and its code. */
        set(thread, root[1], 2 * f, root[4]);
        set(thread, root[1], 2 * f + 1, root[5]);
        uint64_t value = evaluate(root[3]);
        if (evaluate(root[4]) != value || execute(root[5]) != value)
            fail("unit %" PRIu64 ", function %d: tree, folded tree and code do not agree", number, f);
    }
    for (int f = 0; f < FUNCTIONS; f++) {
        if (evaluate(get(root[1], 2 * f)) != execute(get(root[1], 2 * f + 1)))
            fail("unit %" PRIu64 ", function %d has changed", number, f);
        sum += mixed(execute(get(root[1], 2 * f + 1)) + f);
    }
    for (int bucket = 0; bucket < BUCKETS; bucket++)
        for (Ref entry = get(root[0], bucket); entry; entry = get(entry, 0))
            used += *word_of(entry, 1);
    DONE(thread);
    return sum ^ used;
}

static uint64_t compile(Thread *thread, long number) {
    uint64_t sum = 0;
    for (long unit = number; unit < units; unit += vm_threads)
        sum += mixed(compile_unit(thread, unit));
    return sum;
}

int main(int argc, char **argv) {
    int left = vm_begin(argc, argv);
    if (left > 1)
        units = vm_number("UNITS", argv[1], 1, 100000000);
    return vm_end("compiler", vm_in_threads(compile), units * FUNCTIONS);
}
