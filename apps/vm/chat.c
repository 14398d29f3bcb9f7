/*
 * chat - a chat server with rooms of mostly sleeping threads, after VolanoMark.
 *
 * usage: chat [OPTIONS] [ROOMS [MESSAGES]]
 *
 * Each of ROOMS rooms has USERS users; each user has a connection over the loopback interface, a thread of the server that
 * reads it, and a thread that plays the user: so there are 2 * USERS threads for each room. A user sends MESSAGES messages,
 * and waits after each until it has those of all users of the room. The server keeps each room's last messages, and makes an
 * object of each message for each of its receivers. Every user must receive every message of the room once.
 */
#include "vm.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

enum { USERS = 20, KEPT = 50 };

static long rooms = 5, messages = 20;

/* What goes over the wire. */
typedef struct {
    uint64_t user, number, text[6];
} Message;

typedef struct {
    pthread_mutex_t lock; /* of the room's history, and of who writes to its users */
    int server_end[USERS], user_end[USERS];
} Room;

static Room *room_of;

static void *lock(void *mutex) {
    pthread_mutex_lock(mutex);
    return 0;
}

typedef struct {
    int socket;
    Message *message;
    int receivers;
    const int *sockets;
    int closed;
} Transfer;

static void *receive(void *argument) {
    Transfer *t = argument;
    size_t got = 0;
    while (got < sizeof *t->message) {
        ssize_t n = read(t->socket, (char *)t->message + got, sizeof *t->message - got);
        if (n == 0) {
            t->closed = 1;
            return 0;
        }
        if (n < 0)
            fail("cannot read from a connection");
        got += n;
    }
    return 0;
}

static void send_whole(int socket, const Message *message) {
    size_t sent = 0;
    while (sent < sizeof *message) {
        ssize_t n = write(socket, (const char *)message + sent, sizeof *message - sent);
        if (n <= 0)
            fail("cannot write to a connection");
        sent += n;
    }
}

static void *send_to_all(void *argument) {
    Transfer *t = argument;
    for (int i = 0; i < t->receivers; i++)
        send_whole(t->sockets[i], t->message);
    return 0;
}

/* An object of a message, with a reference to the one before it. */
static Ref message_object(Thread *thread, const Message *message) {
    Ref object = make(thread, 1, sizeof *message / 8, message->user);
    memcpy(word_of(object, 0), message, sizeof *message);
    return object;
}

/* The server's side of connection `number`. */
static uint64_t serve(Thread *thread, long number) {
    Room *room = &room_of[number / USERS];
    Message message;
    Transfer in = {.socket = room->server_end[number % USERS], .message = &message};
    ROOTS(thread, 2);
    for (;;) {
        larder_vm_blocking(thread, receive, &in);
        if (in.closed)
            break;
        root[0] = message_object(thread, &message);
        larder_vm_blocking(thread, lock, &room->lock);
        /* The room's object: the newest message, and how many there were. */
        root[1] = get(vm_global[0], number / USERS);
        set(thread, root[0], 0, get(root[1], 0));
        set(thread, root[1], 0, root[0]);
        ++*word_of(root[1], 0);
        Ref last = root[0];
        for (int i = 1; i < KEPT && last; i++)
            last = get(last, 0);
        if (last)
            set(thread, last, 0, 0);
        for (int i = 0; i < USERS; i++) {
            Ref copy = message_object(thread, &message);
            if (memcmp(word_of(copy, 0), &message, sizeof message) || memcmp(word_of(root[0], 0), &message, sizeof message))
                fail("a message has changed");
        }
        Transfer out = {.message = &message, .receivers = USERS, .sockets = room->server_end};
        larder_vm_blocking(thread, send_to_all, &out);
        pthread_mutex_unlock(&room->lock);
    }
    DONE(thread);
    return 0;
}

/* User `number`. */
static uint64_t use(Thread *thread, long number) {
    Room *room = &room_of[number / USERS];
    uint64_t sum = 0, random = number;
    Message message;
    int socket = room->user_end[number % USERS];
    Transfer in = {.socket = socket, .message = &message};
    ROOTS(thread, 1);
    for (long i = 0; i < messages; i++) {
        message = (Message){.user = number, .number = i};
        for (size_t w = 0; w < sizeof message.text / 8; w++)
            message.text[w] = random_next(&random);
        Transfer out = {.message = &message, .receivers = 1, .sockets = &socket};
        larder_vm_blocking(thread, send_to_all, &out);
        root[0] = 0;
        for (int u = 0; u < USERS; u++) {
            larder_vm_blocking(thread, receive, &in);
            if (in.closed)
                fail("the server has closed the connection of user %ld", number);
            Ref object = message_object(thread, &message);
            set(thread, object, 0, root[0]);
            root[0] = object;
        }
        /* What came in this round: each of the room's users once, with this number. */
        uint32_t seen = 0;
        for (Ref at = root[0]; at; at = get(at, 0)) {
            Message *m = (Message *)word_of(at, 0);
            if (m->number != (uint64_t)i || m->user / USERS != (uint64_t)number / USERS)
                fail("user %ld got message %" PRIu64 " of %" PRIu64 " in round %ld", number, m->number, m->user, i);
            seen |= 1u << m->user % USERS;
            sum += mixed(m->user ^ m->text[i % 6]);
        }
        if (seen != (1u << USERS) - 1)
            fail("user %ld missed a message in round %ld", number, i);
    }
    shutdown(socket, SHUT_WR);
    DONE(thread);
    return sum;
}

static uint64_t run(Thread *thread, long number) {
    long users = rooms * USERS;
    return number < users ? serve(thread, number) : use(thread, number - users);
}

static void connect_all(void) {
    int listener = socket(AF_INET, SOCK_STREAM, 0), on = 1;
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    if (listener < 0 || bind(listener, (struct sockaddr *)&address, sizeof address) || listen(listener, 64) ||
        getsockname(listener, (struct sockaddr *)&address, &length))
        fail("cannot listen on the loopback interface");
    for (long r = 0; r < rooms; r++) {
        pthread_mutex_init(&room_of[r].lock, 0);
        for (int u = 0; u < USERS; u++) {
            int user = socket(AF_INET, SOCK_STREAM, 0);
            if (user < 0 || connect(user, (struct sockaddr *)&address, sizeof address))
                fail("cannot connect to the server: try fewer rooms, or raise ulimit -n");
            int server = accept(listener, 0, 0);
            if (server < 0)
                fail("cannot accept a connection: try fewer rooms, or raise ulimit -n");
            setsockopt(user, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
            setsockopt(server, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
            room_of[r].user_end[u] = user;
            room_of[r].server_end[u] = server;
        }
    }
    close(listener);
}

int main(int argc, char **argv) {
    int left = vm_begin(argc, argv);
    if (left > 1)
        rooms = vm_number("ROOMS", argv[1], 1, 25);
    if (left > 2)
        messages = vm_number("MESSAGES", argv[2], 1, 1000000);
    vm_threads = 2 * USERS * rooms;
    room_of = calloc(rooms, sizeof *room_of);
    connect_all();
    Thread *thread = larder_vm_attach(vm);
    vm_global[0] = make(thread, rooms, 0, 0);
    for (long r = 0; r < rooms; r++) {
        Ref room = make(thread, 1, 1, 0);
        set(thread, vm_global[0], r, room);
    }
    larder_vm_detach(thread);
    uint64_t sum = vm_in_threads(run);
    for (long r = 0; r < rooms; r++)
        if (*word_of(get(vm_global[0], r), 0) != (uint64_t)USERS * messages)
            fail("room %ld had %" PRIu64 " messages", r, *word_of(get(vm_global[0], r), 0));
    return vm_end("chat", sum, rooms * USERS * USERS * messages);
}
