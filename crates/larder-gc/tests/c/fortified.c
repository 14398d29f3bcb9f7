// xtask: under larder run
/* The calls that a program makes which is compiled with _FORTIFY_SOURCE know how long their buffers are. Recvfrom's has seven arguments,
 * and the last two come back filled in; a buffer that is too small ends the process, as without the tool. */
#include "check.h"
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

extern ssize_t __recvfrom_chk(int, void *, size_t, size_t, int, struct sockaddr *, socklen_t *);
extern ssize_t __recv_chk(int, void *, size_t, size_t, int);
extern ssize_t __read_chk(int, void *, size_t, size_t);
extern ssize_t __pread_chk(int, void *, size_t, off_t, size_t);
extern int __poll_chk(struct pollfd *, nfds_t, int, size_t);

static struct sockaddr_un address_of(const char *who) {
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    snprintf(a.sun_path + 1, sizeof a.sun_path - 1, "larder-%s-%d", who, getpid());
    return a;
}
static int receiver, sender;
static struct sockaddr_un own, its;
static void send_hello(void) { CHECK(sendto(sender, "hello", 5, 0, (struct sockaddr *)&own, sizeof own) == 5); }
static void too_small(void) {
    char bytes[4];
    send_hello();
    __recvfrom_chk(receiver, bytes, 5, sizeof bytes, 0, 0, 0);
}

int main(void) {
    GC_init();
    struct sockaddr_un from;
    own = address_of("receiver");
    its = address_of("sender");
    receiver = socket(AF_UNIX, SOCK_DGRAM, 0);
    sender = socket(AF_UNIX, SOCK_DGRAM, 0);
    CHECK(bind(receiver, (struct sockaddr *)&own, sizeof own) == 0);
    CHECK(bind(sender, (struct sockaddr *)&its, sizeof its) == 0);

    char bytes[100];
    for (int i = 0; i < 2; i++) {
        socklen_t length = sizeof from;
        memset(bytes, 0, sizeof bytes);
        memset(&from, 0, sizeof from);
        send_hello();
        /* The second time the datagram is only looked at first, which the flags say. */
        if (i == 1) CHECK(__recvfrom_chk(receiver, bytes, 3, sizeof bytes, MSG_PEEK, 0, 0) == 3);
        CHECK(__recvfrom_chk(receiver, bytes, 50, sizeof bytes, 0, (struct sockaddr *)&from, &length) == 5);
        CHECK(memcmp(bytes, "hello", 6) == 0);
        CHECK(length == sizeof from && memcmp(&from, &its, sizeof from) == 0);
    }
    CHECK(ABORTED(in_child(too_small, 0)));

    send_hello();
    CHECK(__recv_chk(receiver, bytes, 50, sizeof bytes, MSG_PEEK) == 5);
    CHECK(__poll_chk(&(struct pollfd){receiver, POLLIN, 0}, 1, -1, sizeof(struct pollfd)) == 1);
    CHECK(__read_chk(receiver, bytes, 50, sizeof bytes) == 5);
    int file = memfd_create("numbers", 0);
    CHECK(write(file, "0123", 4) == 4 && __pread_chk(file, bytes, 2, 1, sizeof bytes) == 2 && bytes[0] == '1');
    return 0;
}
