/* Text goes to the log, formatted as printf does, and never to standard output. */
#include "check.h"
#include <fcntl.h>
#include <unistd.h>

extern void GC_log_printf(const char *, ...);
extern void GC_err_printf(const char *, ...);

int main(void) {
    char name[] = "/tmp/larder-printing-XXXXXX", out_name[] = "/tmp/larder-printing-XXXXXX";
    int log = mkstemp(name), out = mkstemp(out_name);
    CHECK(log >= 0 && out >= 0);
    unlink(name);
    unlink(out_name);
    GC_init();
    dup2(out, 1);
    GC_set_log_fd(log);
    GC_log_printf("%d %s %ld %c %x %lu %d %d|", 1, "two", 3l, '4', 5, 6ul, 7, 8);
    GC_log_printf("%.1f %.2f %d %.3f %.1f %.1f %.1f %.1f %.1f %.1f|", 1.5, 2.25, 3, 4.125, 5., 6., 7., 8., 9., 10.);
    GC_log_printf("plain\n");
    char text[1000] = "";
    CHECK(pread(log, text, sizeof text - 1, 0) > 0);
    CHECK(strcmp(text, "1 two 3 4 5 6 7 8|1.5 2.25 3 4.125 5.0 6.0 7.0 8.0 9.0 10.0|plain\n") == 0);
    CHECK(lseek(out, 0, SEEK_END) == 0);
    return 0;
}
