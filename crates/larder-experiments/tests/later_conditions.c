/*
 * Condition variables as later versions of glibc than 2.36 have them: the word with the flags is the eighth, not the tenth. Compiled twice: as a
 * library that is preloaded behind liblarder_locks.so and stands for that C library, and as a program.
 *
 * The library counts in the last words of a condition what it was asked. It refers to nothing, so that its names have no versions.
 */
#include <pthread.h>

enum { FLAGS = 7, SIGNALS = 10, WORDS = 12 };

#ifdef LIBRARY
int pthread_cond_init(pthread_cond_t *restrict condition, const pthread_condattr_t *restrict attributes) {
    volatile unsigned *words = (volatile unsigned *)condition;
    for (int i = 0; i < WORDS; i++)
        words[i] = 0;
    words[FLAGS] = attributes ? *(const unsigned *)attributes & 1 : 0;
    return 0;
}

int pthread_cond_signal(pthread_cond_t *condition) {
    ((volatile unsigned *)condition)[SIGNALS]++;
    return 0;
}
#else
int main(void) {
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    static pthread_cond_t own, shared;
    pthread_cond_init(&own, &attributes);
    pthread_condattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
    pthread_cond_init(&shared, &attributes);
    pthread_cond_signal(&own);
    pthread_cond_signal(&shared);
    if (((unsigned *)&own)[SIGNALS] != 0)
        return 1; /* It is ours. */
    if (((unsigned *)&shared)[SIGNALS] != 1)
        return 2; /* It is the C library's. */
    return 0;
}
#endif
