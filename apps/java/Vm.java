import com.sun.management.OperatingSystemMXBean;
import java.lang.management.ManagementFactory;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.Locale;

/**
 * Options, random numbers, threads and the result line, as {@code ../vm/vm.h} has them for the C programs.
 *
 * <p>The heap's options are the virtual machine's; here are only {@code --threads N} and {@code --warm N}, which runs the whole program
 * N times before the run that is measured, so that what is measured is compiled code.
 */
final class Vm {
    /** Threads of the program, as {@code --threads} of the C programs. */
    static int threads = 1;

    private static final int MOST_THREADS = 1000;
    /** As the C programs' threads have. */
    private static final long STACK_BYTES = 256 << 10;

    private static String program;
    private static int warm;

    /** What threads of the run have allocated, in bytes; those that have ended. */
    private static long allocatedByEnded;

    private Vm() {}

    /** One run of a program: returns its checksum. */
    interface Run {
        long run() throws Exception;
    }

    /** What one of the threads does; returns its part of a sum. */
    interface Body {
        long run(int number) throws Exception;
    }

    /** A state of splitmix64. */
    static final class Random {
        private long state;

        Random(long state) {
            this.state = state;
        }

        long next() {
            state += 0x9e3779b97f4a7c15L;
            return scrambled(state);
        }
    }

    private static long scrambled(long z) {
        z = (z ^ z >>> 30) * 0xbf58476d1ce4e5b9L;
        z = (z ^ z >>> 27) * 0x94d049bb133111ebL;
        return z ^ z >>> 31;
    }

    /** A sum of these depends on every value but not on their order. */
    static long mixed(long value) {
        return scrambled(value + 0x9e3779b97f4a7c15L);
    }

    /** The remainder of C's unsigned numbers. */
    static int modulo(long value, int by) {
        return (int) Long.remainderUnsigned(value, by);
    }

    /** Ends the program: the heap has lost or changed something. */
    static RuntimeException fail(String format, Object... values) {
        System.err.println(program + ": " + String.format(Locale.ROOT, format, values));
        Runtime.getRuntime().halt(1);
        throw new AssertionError();
    }

    /** Takes the options out of the arguments; returns what is left. */
    static String[] begin(String name, String[] arguments) {
        program = name;
        String[] left = new String[arguments.length];
        int count = 0;
        for (int i = 0; i < arguments.length; i++) {
            String option = arguments[i], value = i + 1 < arguments.length ? arguments[i + 1] : null;
            if (!option.startsWith("--")) {
                left[count++] = option;
                continue;
            }
            switch (option) {
                case "--threads" -> threads = (int) number(option, value, 1, MOST_THREADS);
                case "--warm" -> warm = (int) number(option, value, 0, 1000);
                default -> throw fail("there is no option %s: see README.md; the heap's are java's, before the class", option);
            }
            i++;
        }
        return Arrays.copyOf(left, count);
    }

    /** The argument at a place, or what is taken without one. */
    static int argument(String[] arguments, int at, String name, int least, int most, int without) {
        return at < arguments.length ? (int) number(name, arguments[at], least, most) : without;
    }

    private static long number(String name, String text, long least, long most) {
        try {
            long value = Long.parseLong(text);
            if (value >= least && value <= most) {
                return value;
            }
        } catch (NumberFormatException e) {
            // As out of bounds.
        }
        throw fail("%s needs a number from %d to %d", name, least, most);
    }

    /** Runs {@code body(number)} in as many threads; returns the sum of what they return. */
    static long inThreads(Body body) throws InterruptedException {
        Thread[] handles = new Thread[threads];
        long[] sums = new long[threads];
        for (int i = 0; i < threads; i++) {
            int number = i;
            Runnable task = () -> {
                try {
                    sums[number] = body.run(number);
                } catch (Throwable e) {
                    gaveUp(e);
                }
                synchronized (Vm.class) {
                    allocatedByEnded += allocatedHere();
                }
            };
            handles[i] = new Thread(null, task, program + "-" + i, STACK_BYTES);
        }
        long sum = 0;
        for (Thread thread : handles) {
            thread.start();
        }
        for (Thread thread : handles) {
            thread.join();
        }
        for (long part : sums) {
            sum += part;
        }
        return sum;
    }

    private static void gaveUp(Throwable e) {
        if (e instanceof OutOfMemoryError) {
            if (String.valueOf(e.getMessage()).contains("native thread")) {
                throw fail("cannot start %d threads: try fewer, or raise ulimit -u", threads);
            }
            System.err.println(program + ": out of memory: try a larger -Xmx");
            Runtime.getRuntime().halt(3);
        }
        fail("%s", e);
    }

    private static long allocatedHere() {
        return ((com.sun.management.ThreadMXBean) ManagementFactory.getThreadMXBean()).getCurrentThreadAllocatedBytes();
    }

    /**
     * Runs the program, after it has run {@code --warm} times untimed, and prints the result line.
     *
     * <p>{@code begun_ns} and {@code ended_ns} are on the clock of {@code -Xlog}'s decoration {@code timenanos}: what was logged between
     * them is the measured run's.
     */
    static void measure(Run run, long operations) {
        try {
            OperatingSystemMXBean system = (OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();
            long first = 0;
            for (int i = 0; i < warm; i++) {
                long checksum = run.run();
                if (i > 0 && checksum != first) {
                    throw fail("run %d has the checksum %016x, the first one %016x", i + 1, checksum, first);
                }
                first = checksum;
            }
            // What the runs before have left is not this run's.
            System.gc();
            allocatedByEnded = -allocatedHere();
            long cpu = system.getProcessCpuTime(), begun = System.nanoTime();
            long checksum = run.run();
            long ended = System.nanoTime(), cpuNanos = system.getProcessCpuTime() - cpu;
            if (warm > 0 && checksum != first) {
                throw fail("the measured run has the checksum %016x, the first one %016x", checksum, first);
            }
            double allocated = (allocatedByEnded + allocatedHere()) / 1048576.0;
            System.out.printf(
                    Locale.ROOT,
                    "program=%s threads=%d checksum=%016x operations=%d seconds=%.3f cpu_s=%.3f allocated_mib=%.1f peak_mib=%.1f"
                            + " begun_ns=%d ended_ns=%d%n",
                    program, threads, checksum, operations, (ended - begun) / 1e9, cpuNanos / 1e9, allocated, peakMebibytes(), begun,
                    ended);
        } catch (Throwable e) {
            gaveUp(e);
        }
    }

    /** The most memory that was resident. */
    private static double peakMebibytes() throws java.io.IOException {
        for (String line : Files.readAllLines(Path.of("/proc/self/status"))) {
            if (line.startsWith("VmHWM:")) {
                return Long.parseLong(line.replaceAll("[^0-9]", "")) / 1024.0;
            }
        }
        return Double.NaN;
    }
}
