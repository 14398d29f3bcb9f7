// xtask: larder-only
/* A process that is to leave events where there is no room for them: the file system is full, or files may not be so long. It goes on without. */
#include "check.h"
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

static char folder[] = "/tmp/larder-room-XXXXXX", file[64];

static void begin(void) {
    sprintf(file, "%s/%d.larder", folder, (int)getpid());
    GC_INIT();
}

static void no_room_for_records(void) {
    begin();
    /* The header is there, and a write behind it finds no page, as on a full file system. */
    CHECK(truncate(file, 4096) == 0);
    for (int i = 0; i < 10; i++) GC_gcollect();
    CHECK(GC_get_gc_no() >= 10);
    /* There is room again. */
    CHECK(truncate(file, 4096 + 8192 * 2048) == 0);
    GC_gcollect();
    CHECK(unlink(file) == 0);
}

static void files_may_not_be_so_long(void) {
    struct rlimit limit = {1 << 20, 1 << 20};
    CHECK(setrlimit(RLIMIT_FSIZE, &limit) == 0);
    begin();
    GC_gcollect();
    CHECK(access(file, F_OK) != 0);
}

int main(void) {
    CHECK(mkdtemp(folder) && setenv("LARDER_EVENTS_DIR", folder, 1) == 0);
    const char *text;
    /* A child begins without a heap: this process makes none. */
    CHECK(in_child(no_room_for_records, &text) == 0);
    /* It is said, and once. */
    CHECK(occurs("the file system is full", text) == 1);
    CHECK(in_child(files_may_not_be_so_long, &text) == 0 && *text == 0);
    CHECK(rmdir(folder) == 0);
    return 0;
}
