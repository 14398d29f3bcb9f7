/**
 * cache - a cache whose old entries are replaced all the time. See {@code ../vm/cache.c}.
 *
 * <p>usage: java Cache [--threads N] [--warm N] [OPERATIONS [ENTRIES]]
 */
final class Cache {
    private static final int SLOTS = 512;

    private static int operations, entries;

    private static final class Entry {
        final long[] value;
        /** The entry that this one replaced; cut off behind that. */
        Entry replaced;
        final long number, version;

        Entry(long[] value, long number, long version) {
            this.value = value;
            this.number = number;
            this.version = version;
        }
    }

    private static Entry[][] table;

    private static long stamp(long entry, long version) {
        return Vm.mixed(entry * 1000003 + version);
    }

    private static Entry newEntry(int entry, long version) {
        long stamp = stamp(entry, version);
        long[] value = new long[2 + Vm.modulo(stamp, 24)];
        for (int i = 0; i < value.length; i++) {
            value[i] = stamp + i;
        }
        return new Entry(value, entry, version);
    }

    /** Checks an entry and returns its version. */
    private static long check(Entry at, int entry) {
        if (at.number != entry) {
            throw Vm.fail("entry %d became %d", entry, at.number);
        }
        long[] value = at.value;
        long stamp = stamp(entry, at.version);
        if (value.length != 2 + Vm.modulo(stamp, 24) || value[0] != stamp) {
            throw Vm.fail("the value of entry %d is another one's", entry);
        }
        for (int i = 1; i < value.length; i++) {
            if (value[i] != stamp + i) {
                throw Vm.fail("the value of entry %d has changed", entry);
            }
        }
        return at.version;
    }

    private static long use(int number) {
        Vm.Random random = new Vm.Random(number);
        long sum = 0;
        int mine = entries / Vm.threads, first = number * mine;
        for (int i = 0; i < operations / Vm.threads; i++) {
            long r = random.next();
            // Some entries are looked up much more often than others.
            int entry = first + (int) ((r & 7) != 0 ? (r >>> 8) % (mine / 16 + 1) : (r >>> 8) % mine);
            Entry[] part = table[entry / SLOTS];
            long version = check(part[entry % SLOTS], entry);
            if (r >>> 60 < 4) {
                Entry fresh = newEntry(entry, version + 1);
                Entry old = part[entry % SLOTS];
                fresh.replaced = old;
                old.replaced = null;
                part[entry % SLOTS] = fresh;
            }
        }
        for (int entry = first; entry < first + mine; entry++) {
            sum += Vm.mixed(entry) ^ check(table[entry / SLOTS][entry % SLOTS], entry);
        }
        return sum;
    }

    private static long run() throws Exception {
        table = new Entry[entries / SLOTS + 1][];
        for (int part = 0; part < table.length; part++) {
            table[part] = new Entry[SLOTS];
        }
        for (int entry = 0; entry < entries; entry++) {
            table[entry / SLOTS][entry % SLOTS] = newEntry(entry, 0);
        }
        long sum = Vm.inThreads(Cache::use);
        table = null;
        return sum;
    }

    public static void main(String[] arguments) {
        String[] sizes = Vm.begin("cache", arguments);
        operations = Vm.argument(sizes, 0, "OPERATIONS", 1, 2000000000, 2000000);
        entries = Vm.argument(sizes, 1, "ENTRIES", 1000, 10000000, 20000);
        Vm.measure(Cache::run, operations);
    }
}
