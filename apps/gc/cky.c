/*
 * cky - a parser of context-free grammars that finds all parse trees of each sentence.
 *
 * usage: cky [THREADS [ci|thesis [SENTENCES [LEAST_WORDS [MOST_WORDS]]]]]
 *
 * The program "CKY" of Endo's thesis (2001, section 1.1), after Cocke, Kasami and Younger. For each sentence one matrix is
 * made; its cell [i, j] has a list of the symbols that the words i to j - 1 can be, each with all the ways to divide them. Threads calculate the
 * cells of one length at the same time, shortest first; the last cell has the parse trees of the whole sentence, as a forest
 * whose trees share their parts. When the next sentence begins, the forest is garbage.
 *
 * The grammar is a piece of English in Chomsky's normal form. Each phrase also carries one of three forms, as languages with cases or genders have them:
 * a word can have any, a phrase has the sum of its halves'. Sentences are generated from it, so each has a tree at least; words belong to
 * several classes and phrases attach in several ways, so most have many millions. Each sentence's number of trees (modulo 2^64)
 * is counted twice more: from the forest, and by a table of numbers that does not use the heap. `sum` is made of these numbers.
 */
#include "barrier.h"
#include "thesis.h"

#include <stdatomic.h>

enum { MOST_WORDS = 200 };

typedef enum { S, NP, VP, PP, N, ADJ, ADV, DET, V, P, CONJ, S2, NP2, VP2, N2, ADJ2, SYMBOLS } Symbol;

/* A symbol in a form: symbol * FORMS + form. */
enum { FORMS = 3, FORMED = SYMBOLS * FORMS };

typedef struct {
    unsigned char parent, left, right;
} Rule;

/* The symbols with a 2 are the later half of a conjunction. */
static const Rule rules[] = {
    {S, NP, VP},   {S, S, S2},     {S, PP, S},    {S, ADV, S},     {S2, CONJ, S},   {NP, DET, N},    {NP, NP, PP},
    {NP, NP, NP2}, {NP2, CONJ, NP}, {N, ADJ, N},   {N, N, N},       {N, N, PP},      {N, N, N2},      {N2, CONJ, N},
    {VP, V, NP},   {VP, VP, PP},   {VP, VP, VP2}, {VP, ADV, VP},   {VP, VP, ADV},   {VP2, CONJ, VP}, {PP, P, NP},
    {ADJ, ADV, ADJ}, {ADJ, ADJ, ADJ2}, {ADJ2, CONJ, ADJ},
};
enum { RULES = sizeof rules / sizeof rules[0] };

/* Words, each with the set of classes that it belongs to; a noun of its own may be a phrase without a determiner. */
static const unsigned lexicon[] = {
    1u << DET,                              /* the */
    1u << N | 1u << NP,                     /* water */
    1u << N | 1u << NP | 1u << V,           /* plans */
    1u << N | 1u << V | 1u << ADJ,          /* light */
    1u << N | 1u << NP | 1u << V | 1u << ADJ, /* cools */
    1u << N | 1u << NP | 1u << ADV | 1u << ADJ, /* well */
    1u << P | 1u << ADV,                    /* near */
    1u << P | 1u << ADV | 1u << V,          /* down */
    1u << CONJ,                             /* and */
};
enum { WORDS = sizeof lexicon / sizeof lexicon[0] };

typedef struct Item Item;

/* One way to divide: a rule's halves. */
typedef struct Way {
    Item *left, *right;
    struct Way *next;
} Way;

/* What some words can be. */
struct Item {
    Item *next; /* in its cell */
    Way *ways;  /* none for a single word */
    uint64_t trees;
    unsigned symbol, form;
    int counted;
};

static long threads, sentences, least_words, most_words;
static unsigned char rule_at[SYMBOLS][SYMBOLS][4]; /* rules with these halves, plus 1; 0 ends */
static char derivable[SYMBOLS][MOST_WORDS + 1];    /* whether there is a phrase of this many words */
static unsigned sentence[MOST_WORDS];
static int words;
static Item **matrix; /* row i, column j at i * (words + 1) + j */
static _Atomic int next_cell;
static _Atomic uint64_t objects;
static uint64_t sum;
static pthread_barrier_t barrier;

static int is_class(Symbol symbol) { return symbol == NP || (symbol >= N && symbol <= CONJ); }

static void make_tables(void) {
    for (int r = 0; r < RULES; r++) {
        unsigned char *at = rule_at[rules[r].left][rules[r].right];
        while (*at)
            at++;
        *at = r + 1;
    }
    for (Symbol symbol = 0; symbol < SYMBOLS; symbol++)
        derivable[symbol][1] = is_class(symbol);
    for (int length = 2; length <= MOST_WORDS; length++)
        for (int r = 0; r < RULES; r++)
            for (int k = 1; k < length; k++)
                if (derivable[rules[r].left][k] && derivable[rules[r].right][length - k])
                    derivable[rules[r].parent][length] = 1;
}

static void generate(Symbol symbol, int from, int length, uint64_t *state) {
    if (length == 1) {
        /* Words of many classes are frequent, as they are in English. */
        unsigned word = 0;
        for (int draw = 0; draw < 3 || !word; draw++) {
            unsigned drawn = lexicon[random_next(state) % WORDS];
            if (drawn >> symbol & 1 && __builtin_popcount(drawn) > __builtin_popcount(word))
                word = drawn;
        }
        sentence[from] = word;
        return;
    }
    for (;;) {
        const Rule *rule = &rules[random_next(state) % RULES];
        int k = random_next(state) % (length - 1) + 1;
        if (rule->parent == symbol && derivable[rule->left][k] && derivable[rule->right][length - k]) {
            generate(rule->left, from, k, state);
            generate(rule->right, from + k, length - k, state);
            return;
        }
    }
}

static Item **cell(int i, int j) { return &matrix[i * (words + 1) + j]; }

/* The item of a symbol in a form, in a cell under construction. */
static Item *item_of(Item **list, Item *of_symbol[FORMED], Symbol symbol, unsigned form) {
    Item **place = &of_symbol[symbol * FORMS + form];
    if (!*place) {
        Item *item = allocated("cky", GC_MALLOC(sizeof *item));
        item->symbol = symbol;
        item->form = form;
        STORE(&item->next, *list);
        *list = *place = item;
    }
    return *place;
}

static void fill_cell(int i, int j) {
    Item *list = 0, *of_symbol[FORMED] = {0};
    uint64_t made = 0;
    if (j == i + 1)
        for (Symbol symbol = 0; symbol < SYMBOLS; symbol++)
            for (unsigned form = 0; form < FORMS && sentence[i] >> symbol & 1; form++)
                item_of(&list, of_symbol, symbol, form)->trees = 1;
    for (int k = i + 1; k < j; k++)
        for (Item *left = *cell(i, k); left; left = left->next)
            for (Item *right = *cell(k, j); right; right = right->next)
                for (const unsigned char *r = rule_at[left->symbol][right->symbol]; *r; r++) {
                    unsigned form = (left->form + right->form) % FORMS;
                    Item *item = item_of(&list, of_symbol, rules[*r - 1].parent, form);
                    Way *way = allocated("cky", GC_MALLOC(sizeof *way));
                    STORE(&way->left, left);
                    STORE(&way->right, right);
                    STORE(&way->next, item->ways);
                    STORE(&item->ways, way);
                    item->trees += left->trees * right->trees;
                    made++;
                }
    for (Item *item = list; item; item = item->next)
        made++;
    STORE(cell(i, j), list);
    objects += made;
}

/* Counts an item's trees again, from what it points to. */
static uint64_t count_trees(Item *item) {
    if (!item->counted) {
        uint64_t trees = !item->ways;
        for (Way *way = item->ways; way; way = way->next)
            trees += count_trees(way->left) * count_trees(way->right);
        if (trees != item->trees) {
            fprintf(stderr, "cky: a forest lost trees: lost by the collector, or given out twice\n");
            exit(1);
        }
        item->counted = 1;
    }
    return item->trees;
}

/* The number of trees of the whole sentence, without the heap. */
static uint64_t trees_by_table(void) {
    static uint64_t table[MOST_WORDS][MOST_WORDS + 1][FORMED];
    for (int length = 1; length <= words; length++)
        for (int i = 0; i + length <= words; i++) {
            uint64_t *at = table[i][i + length];
            for (int formed = 0; formed < FORMED; formed++)
                at[formed] = length == 1 && sentence[i] >> (formed / FORMS) & 1;
            for (int k = i + 1; k < i + length; k++)
                for (int r = 0; r < RULES; r++) {
                    const uint64_t *left = &table[i][k][rules[r].left * FORMS];
                    const uint64_t *right = &table[k][i + length][rules[r].right * FORMS];
                    for (int g = 0; g < FORMS; g++)
                        for (int h = 0; left[g] && h < FORMS; h++)
                            at[rules[r].parent * FORMS + (g + h) % FORMS] += left[g] * right[h];
                }
        }
    return table[0][words][S * FORMS];
}

static void begin_sentence(uint64_t *state) {
    words = least_words + random_next(state) % (most_words - least_words + 1);
    generate(S, 0, words, state);
    matrix = allocated("cky", GC_MALLOC(words * (words + 1) * sizeof *matrix));
}

static void end_sentence(void) {
    Item *whole = *cell(0, words);
    while (whole && (whole->symbol != S || whole->form))
        whole = whole->next;
    uint64_t trees = whole ? count_trees(whole) : 0, wanted = trees_by_table();
    if (!whole || trees != wanted) {
        fprintf(stderr, "cky: a sentence of %d words has %" PRIu64 " trees, not %" PRIu64 "\n", words, trees, wanted);
        exit(1);
    }
    sum = sum_add(sum, trees);
}

static long larger(long a, long b) { return a > b ? a : b; }

static int alone(void) { return pthread_barrier_wait(&barrier) == PTHREAD_BARRIER_SERIAL_THREAD; }

static void *parse(void *argument) {
    static uint64_t state = 2001; /* of whoever is alone */
    (void)argument;
    for (long n = 0; n < sentences; n++) {
        if (alone())
            begin_sentence(&state);
        pthread_barrier_wait(&barrier);
        for (int length = 1; length <= words; length++) {
            for (int i; (i = next_cell++) + length <= words;)
                fill_cell(i, i + length);
            if (alone())
                next_cell = 0;
            pthread_barrier_wait(&barrier);
        }
        if (alone())
            end_sentence();
        pthread_barrier_wait(&barrier);
    }
    return 0;
}

int main(int argc, char **argv) {
    threads = thesis_threads(argc, argv, 5);
    sentences = thesis_size(argc, argv, 3, "SENTENCES", 6, 200, 1, 1000000);
    least_words = thesis_size(argc, argv, 4, "LEAST_WORDS", 24, 36, 4, MOST_WORDS);
    /* Sentences that are asked to be longer than the preset's longest are all of that length. */
    most_words = thesis_size(argc, argv, 5, "MOST_WORDS", larger(48, least_words), larger(100, least_words), least_words, MOST_WORDS);
    report_start();
    make_tables();
    pthread_barrier_init(&barrier, 0, threads);
    double start = now_s();
    run_threads(threads, parse);
    double seconds = now_s() - start;
    thesis_begin("cky" SOFT, threads, sum, seconds);
    printf(" sentences=%ld objects=%" PRIu64, sentences, objects);
    thesis_end();
    return 0;
}
