import java.io.IOException;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.StandardSocketOptions;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.channels.ServerSocketChannel;
import java.nio.channels.SocketChannel;

/**
 * chat - a chat server with rooms of mostly sleeping threads, after VolanoMark. See {@code ../vm/chat.c}.
 *
 * <p>usage: java Chat [--warm N] [ROOMS [MESSAGES]]
 *
 * <p>Messages go over the wire from and to buffers outside of the heap, which every thread has of its own, as the C program's are on
 * its stack.
 */
final class Chat {
    private static final int USERS = 20, KEPT = 50, MESSAGE_BYTES = 64;

    private static int rooms, messages;

    /** A message, with a reference to the one before it. */
    private static final class Message {
        Message next;
        final int user;
        final long number, text0, text1, text2, text3, text4, text5;

        Message(ByteBuffer from) {
            user = (int) from.getLong(0);
            number = from.getLong(8);
            text0 = from.getLong(16);
            text1 = from.getLong(24);
            text2 = from.getLong(32);
            text3 = from.getLong(40);
            text4 = from.getLong(48);
            text5 = from.getLong(56);
        }

        boolean equals(ByteBuffer other) {
            return user == other.getLong(0) && number == other.getLong(8) && text0 == other.getLong(16) && text1 == other.getLong(24)
                    && text2 == other.getLong(32) && text3 == other.getLong(40) && text4 == other.getLong(48)
                    && text5 == other.getLong(56);
        }

        long text(int at) {
            return switch (at) {
                case 0 -> text0;
                case 1 -> text1;
                case 2 -> text2;
                case 3 -> text3;
                case 4 -> text4;
                default -> text5;
            };
        }
    }

    /** A room: its lock is of its history, and of who writes to its users. */
    private static final class Room {
        Message newest;
        long count;
        final SocketChannel[] serverEnd = new SocketChannel[USERS], userEnd = new SocketChannel[USERS];
    }

    private static Room[] roomOf;

    private static ByteBuffer buffer() {
        return ByteBuffer.allocateDirect(MESSAGE_BYTES).order(ByteOrder.nativeOrder());
    }

    /** Receives a whole message; false when the other end has closed. */
    private static boolean receive(SocketChannel socket, ByteBuffer message) throws IOException {
        message.clear();
        while (message.hasRemaining()) {
            if (socket.read(message) < 0) {
                return false;
            }
        }
        return true;
    }

    private static void sendWhole(SocketChannel socket, ByteBuffer message) throws IOException {
        message.clear();
        while (message.hasRemaining()) {
            socket.write(message);
        }
    }

    /** The server's side of a connection. */
    private static long serve(int number) throws IOException {
        Room room = roomOf[number / USERS];
        SocketChannel socket = room.serverEnd[number % USERS];
        ByteBuffer message = buffer();
        while (receive(socket, message)) {
            Message kept = new Message(message);
            synchronized (room) {
                kept.next = room.newest;
                room.newest = kept;
                room.count++;
                Message last = kept;
                for (int i = 1; i < KEPT && last != null; i++) {
                    last = last.next;
                }
                if (last != null) {
                    last.next = null;
                }
                for (int i = 0; i < USERS; i++) {
                    Message copy = new Message(message);
                    if (!copy.equals(message) || !kept.equals(message)) {
                        throw Vm.fail("a message has changed");
                    }
                }
                for (SocketChannel receiver : room.serverEnd) {
                    sendWhole(receiver, message);
                }
            }
        }
        return 0;
    }

    /** A user. */
    private static long use(int number) throws IOException {
        SocketChannel socket = roomOf[number / USERS].userEnd[number % USERS];
        Vm.Random random = new Vm.Random(number);
        ByteBuffer message = buffer();
        long sum = 0;
        for (int i = 0; i < messages; i++) {
            message.putLong(0, number).putLong(8, i);
            for (int at = 16; at < MESSAGE_BYTES; at += 8) {
                message.putLong(at, random.next());
            }
            sendWhole(socket, message);
            Message newest = null;
            for (int u = 0; u < USERS; u++) {
                if (!receive(socket, message)) {
                    throw Vm.fail("the server has closed the connection of user %d", number);
                }
                Message received = new Message(message);
                received.next = newest;
                newest = received;
            }
            // What came in this round: each of the room's users once, with this number.
            int seen = 0;
            for (Message m = newest; m != null; m = m.next) {
                if (m.number != i || m.user / USERS != number / USERS) {
                    throw Vm.fail("user %d got message %d of %d in round %d", number, m.number, m.user, i);
                }
                seen |= 1 << m.user % USERS;
                sum += Vm.mixed(m.user ^ m.text(i % 6));
            }
            if (seen != (1 << USERS) - 1) {
                throw Vm.fail("user %d missed a message in round %d", number, i);
            }
        }
        socket.shutdownOutput();
        return sum;
    }

    private static void connectAll() throws IOException {
        try (ServerSocketChannel listener = ServerSocketChannel.open()) {
            listener.bind(new InetSocketAddress(InetAddress.getLoopbackAddress(), 0), 64);
            for (Room room : roomOf) {
                for (int u = 0; u < USERS; u++) {
                    room.userEnd[u] = SocketChannel.open(listener.getLocalAddress());
                    room.serverEnd[u] = listener.accept();
                    room.userEnd[u].setOption(StandardSocketOptions.TCP_NODELAY, true);
                    room.serverEnd[u].setOption(StandardSocketOptions.TCP_NODELAY, true);
                }
            }
        } catch (IOException e) {
            throw Vm.fail("cannot connect to the server (%s): try fewer rooms, or raise ulimit -n", e.getMessage());
        }
    }

    private static long run() throws Exception {
        roomOf = new Room[rooms];
        for (int r = 0; r < rooms; r++) {
            roomOf[r] = new Room();
        }
        connectAll();
        int users = rooms * USERS;
        long sum = Vm.inThreads(number -> number < users ? serve(number) : use(number - users));
        for (int r = 0; r < rooms; r++) {
            if (roomOf[r].count != (long) USERS * messages) {
                throw Vm.fail("room %d had %d messages", r, roomOf[r].count);
            }
            for (int u = 0; u < USERS; u++) {
                roomOf[r].userEnd[u].close();
                roomOf[r].serverEnd[u].close();
            }
        }
        roomOf = null;
        return sum;
    }

    public static void main(String[] arguments) {
        String[] sizes = Vm.begin("chat", arguments);
        rooms = Vm.argument(sizes, 0, "ROOMS", 1, 25, 5);
        messages = Vm.argument(sizes, 1, "MESSAGES", 1, 1000000, 20);
        Vm.threads = 2 * USERS * rooms;
        Vm.measure(Chat::run, (long) rooms * USERS * USERS * messages);
    }
}
