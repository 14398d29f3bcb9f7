/* The rows of the table in C: the benchmark compiles them, with liblarder_cs.so, and calls them. */
#include <larder_cs.h>

static cs_domain *domain;

/* Where a row begins: the address in a register, as that of a static domain is in Rust. */
#define HERE cs_domain *const here = domain

int rows_set_up(void) {
    domain = csxCreate(CS_BY_CONCURRENCY_ID, sizeof(int64_t));
    return domain ? 0 : -1;
}

/* Begin, store 64 bits, end: inlined. */
void row_inlined(size_t n) {
    HERE;
    while (n--) {
        cs_handle h;
        csxBegin(here, &h);
        volatile int64_t *word = csxHere(&h);
        csxST64(&h, (void *)word, *word + 1);
        csxEnd(&h);
    }
}

/* The same by the library's functions. */
void row_called(size_t n) {
    HERE;
    while (n--) {
        cs_handle h;
        (csxBegin)(here, &h);
        volatile int64_t *word = csxHere(&h);
        (csxST64)(&h, (void *)word, *word + 1);
        (csxEnd)(&h);
    }
}

/* The paper's form: the open transaction is the thread's, so each step is a call. */
void row_paper(size_t n) {
    static int64_t words[1024][16];
    while (n--) {
        volatile int64_t *word = &words[csBegin() % 1024][0];
        csST64C((void *)word, *word + 1);
        csEnd();
    }
}

void row_add(size_t n) {
    HERE;
    while (n--) {
        csxAdd64(here, 0, 1);
    }
}
