/*
 * larder_cs_inline.h: the extended interface of larder_cs.h without calls. Include larder_cs.h, which includes this.
 *
 * Each name is a macro over an inline function that runs the library's own sequence in the caller; where it is refused (no
 * sequences here, the index is taken over, interference), the library's function decides and counts. `(csxBegin)(d, h)`, with
 * parentheses, is the library's function. Define CS_NO_INLINE before including larder_cs.h to have calls only: for a shared
 * object that may be unloaded while threads live (a thread's area may name a sequence long after it ran), and for debuggers that
 * step through instructions.
 *
 * What is under "layout" is shared with the library. Should it ever change, the symbol cs_layout_1 is gone, and a program that was
 * compiled before stops at its start with one line that names it.
 *
 * A handle that is a local variable stays in registers: only copies of it are passed to the library. The domain's address should
 * be one, too: a variable that others can see is read again in every begin.
 */
#ifndef LARDER_CS_INLINE_H
#define LARDER_CS_INLINE_H

#ifdef __cplusplus
extern "C" {
#endif

/* Layout: how a cs_domain begins, and how an area's head ends before its content. */
struct cs_frame {
    intptr_t rseq_cs;    /* offset from the thread pointer; 0 where there are no sequences */
    intptr_t index_word; /* the same for the index */
    char *base;          /* head of the area of index 0 */
    size_t stride;       /* from one area to the next */
    uint32_t indices;
};
enum { CS_HEAD = 64 }; /* token at -64, closed word at -56 of the content */

extern const struct cs_layout {
    uint64_t *restarts; /* one for each sequence */
} cs_layout_1;

/* What every sequence has besides its instructions: the signature and the handler of aborts, which counts and starts over; text
 * that is not on the fast path; the descriptor that the kernel reads; its place in the list for debuggers. `t` is a register that
 * the sequence writes before it reads it. */
#define CS_SEQUENCE(id, t, aside)                     \
    "4:\n\t"                                          \
    ".pushsection __rseq_failure, \"ax\"\n\t"         \
    ".byte 0x0f, 0xb9, 0x3d\n\t"                      \
    ".long 0x53053053\n"                              \
    "5:\n\t"                                          \
    "movq cs_layout_1@GOTPCREL(%%rip), " t "\n\t"     \
    "movq (" t "), " t "\n\t"                         \
    "lock incq 8*" id "(" t ")\n\t"                   \
    "jmp 2b\n" aside                                  \
    "\n\t.popsection\n\t"                             \
    ".pushsection __rseq_cs, \"aw\"\n\t"              \
    ".balign 32\n"                                    \
    "77:\n\t"                                         \
    ".long 0, 0\n\t"                                  \
    ".quad 3b, 4b - 3b, 5b\n\t"                       \
    ".popsection\n\t"                                 \
    ".pushsection __rseq_cs_ptr_array, \"aw\"\n\t"    \
    ".quad 77b\n\t"                                   \
    ".popsection"

/* Arms with the frame's words, reads the index, finds its area in r10, and tests that it is open. */
#define CS_AREA(refused)                          \
    "2:\n\t"                                      \
    "leaq 77f(%%rip), %%rax\n\t"                  \
    "movq (%[frame]), %%r10\n\t"                  \
    "movq %%rax, %%fs:(%%r10)\n"                  \
    "3:\n\t"                                      \
    "cmpl $0x7fffffff, %%fs:-4(%%r10)\n\t"        \
    "ja " refused "\n\t"                          \
    "movq 8(%[frame]), %%r10\n\t"                 \
    "movl %%fs:(%%r10), %%r10d\n\t"               \
    "cmpl 32(%[frame]), %%r10d\n\t"               \
    "jae " refused "\n\t"                         \
    "imulq 24(%[frame]), %%r10\n\t"               \
    "addq 16(%[frame]), %%r10\n\t"                \
    "cmpq $0, 8(%%r10)\n\t"                       \
    "jne " refused "\n\t"

/* Of the area in r10, the address of what lies at the offset, without an index register: Intel's cores since Golden Cove forward a
 * word that was just stored at once only so. */
#define CS_PLACE "addq %[offset], %%r10\n\t"

/* Arms with the handle's words, and tests that its transaction holds. */
#define CS_HOLDS(t)                               \
    "2:\n\t"                                      \
    "leaq 77f(%%rip), " t "\n\t"                  \
    "movq " t ", %%fs:(%[arm])\n"                 \
    "3:\n\t"                                      \
    "cmpl $0x7fffffff, %%fs:-4(%[arm])\n\t"       \
    "ja %l[refused]\n\t"                          \
    "cmpl %k[index], %%fs:(%[at])\n\t"            \
    "jne %l[refused]\n\t"                         \
    "cmpq $0, -56(%[area])\n\t"                   \
    "jne %l[refused]\n\t"                         \
    "cmpq %[token], -64(%[area])\n\t"             \
    "jne %l[refused]\n\t"

#define CS_HANDLE(h)                                                                                             \
    [arm] "r"((h)->rseq_cs), [at] "r"((h)->index_word), [index] "r"((h)->index), [area] "r"((h)->area), \
        [token] "r"((h)->token)

static inline const struct cs_frame *cs_inline_frame(const cs_domain *domain) {
    return (const struct cs_frame *)(const void *)domain;
}

/* Copies a handle for a call, or back, word by word. Without the empty text GCC would move neighbours as vectors, for the calls'
 * sake, and take them apart on the fast path. */
static inline void cs_inline_copy(cs_handle *to, const cs_handle *from) {
    cs_handle words = *from;
    __asm__("" : "+r"(words.domain), "+r"(words.rseq_cs), "+r"(words.area));
    __asm__("" : "+r"(words.index_word), "+r"(words.token), "+r"(words.index));
    *to = words;
}

/* GCC from 11 on and clang let a text that has results jump; older ones begin by a call. It must say that it is volatile: some of them
 * leave it out where nobody uses the results, as in a handler that only interferes. */
#if defined(__clang__) ? __clang_major__ >= 11 : __GNUC__ >= 11
#define CS_INLINE_BEGIN 1
#else
#define CS_INLINE_BEGIN 0
#endif

static inline unsigned cs_inline_begin(const cs_domain *domain, cs_handle *handle) {
#if CS_INLINE_BEGIN
    const struct cs_frame *frame = cs_inline_frame(domain);
    intptr_t rseq_cs = frame->rseq_cs;
    if (__builtin_expect(rseq_cs != 0, 1)) {
        intptr_t index_word = frame->index_word;
        uint64_t token, index;
        char *area;
        __asm__ volatile goto("2:\n\t"
                              "leaq 77f(%%rip), %[area]\n\t"
                              "movq %[area], %%fs:(%[arm])\n"
                              "3:\n\t"
                              "cmpl $0x7fffffff, %%fs:-4(%[arm])\n\t"
                              "ja %l[refused]\n\t"
                              "movl %%fs:(%[at]), %k[index]\n\t"
                              "cmpl 32(%[frame]), %k[index]\n\t"
                              "jae %l[refused]\n\t"
                              "movq 24(%[frame]), %[area]\n\t"
                              "imulq %[index], %[area]\n\t"
                              "addq 16(%[frame]), %[area]\n\t"
                              "cmpq $0, 8(%[area])\n\t"
                              "jne %l[refused]\n\t"
                              "movq (%[area]), %[token]\n\t"
                              "incq %[token]\n\t"
                              "movq %[token], (%[area])\n"
                              CS_SEQUENCE("0", "%[area]", "")
                              : [token] "=&r"(token), [index] "=&r"(index), [area] "=&r"(area)
                              : [frame] "r"(frame), [arm] "r"(rseq_cs), [at] "r"(index_word)
                              : "memory", "cc"
                              : refused);
        handle->domain = domain;
        handle->rseq_cs = rseq_cs;
        handle->area = area + CS_HEAD;
        handle->index_word = index_word;
        handle->token = token;
        handle->index = index;
        return (unsigned)index;
    }
refused:;
#endif
    cs_handle made;
    unsigned index = (csxBegin)(domain, &made);
    cs_inline_copy(handle, &made);
    return index;
}

/* A commit: the text of its store, its operands, and the library's call where it is refused. */
#define CS_COMMIT(id, store, call, ...)                                                                 \
    if (__builtin_expect(handle->rseq_cs != 0, 1)) {                                                    \
        __asm__ volatile goto(CS_HOLDS("%%rax") store "\n" CS_SEQUENCE(id, "%%rax", "")                 \
                     :                                                                                  \
                     : CS_HANDLE(handle), __VA_ARGS__                                                   \
                     : "rax", "memory", "cc"                                                            \
                     : refused, mismatch);                                                              \
        return CS_STORED;                                                                               \
    mismatch:                                                                                           \
        return CS_MISMATCH;                                                                             \
    }                                                                                                   \
refused:;                                                                                               \
    cs_handle copy;                                                                                     \
    cs_inline_copy(&copy, handle);                                                                      \
    int status = call;                                                                                  \
    cs_inline_copy(handle, &copy);                                                                      \
    return status

static inline int cs_inline_st32(cs_handle *handle, void *addr, int32_t val) {
    CS_COMMIT("1", "movl %k[val], (%[addr])", (csxST32)(&copy, addr, val), [addr] "r"(addr), [val] "r"(val));
}

static inline int cs_inline_st64(cs_handle *handle, void *addr, int64_t val) {
    CS_COMMIT("2", "movq %[val], (%[addr])", (csxST64)(&copy, addr, val), [addr] "r"(addr), [val] "r"(val));
}

static inline int cs_inline_cas32(cs_handle *handle, int32_t new_value, int32_t old_value, void *addr) {
    CS_COMMIT("3", "cmpl %k[old], (%[addr])\n\tjne %l[mismatch]\n\tmovl %k[val], (%[addr])",
              (csxCAS32)(&copy, new_value, old_value, addr), [addr] "r"(addr), [old] "r"(old_value),
              [val] "r"(new_value));
}

static inline int cs_inline_cas64(cs_handle *handle, int64_t new_value, int64_t old_value, void *addr) {
    CS_COMMIT("4", "cmpq %[old], (%[addr])\n\tjne %l[mismatch]\n\tmovq %[val], (%[addr])",
              (csxCAS64)(&copy, new_value, old_value, addr), [addr] "r"(addr), [old] "r"(old_value),
              [val] "r"(new_value));
}

static inline int cs_inline_cas128(cs_handle *handle, const uint64_t *new_value, const uint64_t *old_value, void *addr) {
    if (__builtin_expect(handle->rseq_cs != 0, 1)) {
        __asm__ volatile goto("movq %[old], %%rax\n\t"
                              "movq %[old_second], %%rdx\n"
                              CS_HOLDS("%%rsi")
                              "cmpxchg16b (%[addr])\n"
                              CS_SEQUENCE("5", "%%rsi", "") "\n\t"
                              "jne %l[mismatch]"
                              :
                              : CS_HANDLE(handle), [addr] "r"(addr), [old] "r"(old_value[0]), [old_second] "r"(old_value[1]),
                                "b"(new_value[0]), "c"(new_value[1])
                              : "rax", "rdx", "rsi", "memory", "cc"
                              : refused, mismatch);
        return CS_STORED;
    mismatch:
        return CS_MISMATCH;
    }
refused:;
    cs_handle copy;
    cs_inline_copy(&copy, handle);
    int status = (csxCAS128)(&copy, new_value, old_value, addr);
    cs_inline_copy(handle, &copy);
    return status;
}

static inline void cs_inline_end(cs_handle *handle) {
    handle->token = 0;
}

static inline int cs_inline_valid(const cs_handle *handle) {
    cs_handle copy;
    cs_inline_copy(&copy, handle);
    return (csxValid)(&copy);
}

static inline void cs_inline_invalidate(cs_handle *handle) {
    cs_handle copy;
    cs_inline_copy(&copy, handle);
    (csxInvalidate)(&copy);
    cs_inline_copy(handle, &copy);
}

static inline int cs_inline_reopen(cs_handle *handle) {
    cs_handle copy;
    cs_inline_copy(&copy, handle);
    int moved = (csxReopen)(&copy);
    cs_inline_copy(handle, &copy);
    return moved;
}

static inline void cs_inline_add64(const cs_domain *domain, size_t offset, int64_t value) {
    const struct cs_frame *frame = cs_inline_frame(domain);
    if (__builtin_expect(frame->rseq_cs != 0, 1)) {
        __asm__ volatile goto(CS_AREA("%l[refused]") CS_PLACE "addq %[value], (%%r10)\n"
                              CS_SEQUENCE("6", "%%rax", "")
                              :
                              : [frame] "r"(frame), [offset] "r"(offset + CS_HEAD), [value] "r"(value)
                              : "rax", "r10", "memory", "cc"
                              : refused);
        return;
    }
refused:
    (csxAdd64)(domain, offset, value);
}

static inline void *cs_inline_pop(const cs_domain *domain, size_t offset) {
    const struct cs_frame *frame = cs_inline_frame(domain);
    if (__builtin_expect(frame->rseq_cs != 0, 1)) {
        intptr_t node;
        __asm__ volatile(CS_AREA("6f")
                         CS_PLACE
                         "movq (%%r10), %%rax\n\t"
                         "testq %%rax, %%rax\n\t"
                         "jz 4f\n\t"
                         "movq (%%rax), %%rcx\n\t"
                         "movq %%rcx, (%%r10)\n"
                         CS_SEQUENCE("13", "%%rax", "6:\n\tmovq $-1, %%rax\n\tjmp 4b")
                         : "=&a"(node)
                         : [frame] "r"(frame), [offset] "r"(offset + CS_HEAD)
                         : "r10", "rcx", "memory", "cc");
        if (__builtin_expect(node != -1, 1)) {
            return (void *)node;
        }
    }
    return (csxPop)(domain, offset);
}

static inline void cs_inline_push(const cs_domain *domain, size_t offset, void *node) {
    const struct cs_frame *frame = cs_inline_frame(domain);
    if (__builtin_expect(frame->rseq_cs != 0, 1)) {
        __asm__ volatile goto(CS_AREA("%l[refused]")
                              CS_PLACE
                              "movq (%%r10), %%rax\n\t"
                              "movq %%rax, (%[last])\n\t"
                              "movq %[first], (%%r10)\n"
                              CS_SEQUENCE("14", "%%rax", "")
                              :
                              : [frame] "r"(frame), [offset] "r"(offset + CS_HEAD), [first] "r"(node), [last] "r"(node)
                              : "rax", "r10", "memory", "cc"
                              : refused);
        return;
    }
refused:
    (csxPush)(domain, offset, node);
}

#define csxBegin(domain, handle) cs_inline_begin(domain, handle)
#define csxValid(handle) cs_inline_valid(handle)
#define csxEnd(handle) cs_inline_end(handle)
#define csxInvalidate(handle) cs_inline_invalidate(handle)
#define csxReopen(handle) cs_inline_reopen(handle)
#define csxST32(handle, addr, val) cs_inline_st32(handle, addr, val)
#define csxCAS32(handle, new_value, old_value, addr) cs_inline_cas32(handle, new_value, old_value, addr)
#define csxST64(handle, addr, val) cs_inline_st64(handle, addr, val)
#define csxCAS64(handle, new_value, old_value, addr) cs_inline_cas64(handle, new_value, old_value, addr)
#define csxCAS128(handle, new_value, old_value, addr) cs_inline_cas128(handle, new_value, old_value, addr)
#define csxAdd64(domain, offset, value) cs_inline_add64(domain, offset, value)
#define csxPush(domain, offset, node) cs_inline_push(domain, offset, node)
#define csxPop(domain, offset) cs_inline_pop(domain, offset)

#ifdef __cplusplus
}
#endif

#endif
