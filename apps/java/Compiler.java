/**
 * compiler - what a compiler allocates, after _213_javac: one thread, or many that each compile units of their own. See
 * {@code ../vm/compiler.c}.
 *
 * <p>usage: java Compiler [--threads N] [--warm N] [UNITS]
 */
final class Compiler {
    private static final int FUNCTIONS = 30, NAMES = 64, BUCKETS = 32, SOURCE = 4096;

    private static int units;

    private static final class Token {
        Token next;
        long number;
        final long kind, value;

        Token(long kind, long value) {
            this.kind = kind;
            this.value = value;
        }
    }

    private static final class Tree {
        Tree left, right;
        Entry name;
        long number, kind;
        final long value;

        Tree(long kind, long value) {
            this.kind = kind;
            this.value = value;
        }
    }

    private static final class Entry {
        Entry next;
        long uses;
        final int name;

        Entry(int name) {
            this.name = name;
        }
    }

    // What the C program has on its stack.
    private final byte[] text = new byte[SOURCE];
    private final long[] stack = new long[64];
    private int length;
    private Token at;

    private void writeNumber(int number) {
        if (number >= 10) {
            writeNumber(number / 10);
        }
        text[length++] = (byte) ('0' + number % 10);
    }

    private void writeExpression(Vm.Random random, int depth) {
        long r = random.next();
        if (depth == 0 || (r & 7) == 0 || length > SOURCE - 200) {
            if ((r >>> 8 & 1) != 0) {
                writeNumber((int) (r >>> 16 & 0xff));
            } else {
                text[length++] = 'n';
                writeNumber((int) (r >>> 16) & NAMES - 1);
            }
            return;
        }
        text[length++] = '(';
        writeExpression(random, depth - 1);
        text[length++] = (byte) "+-*+".charAt((int) (r >>> 8 & 3));
        writeExpression(random, depth - 1);
        text[length++] = ')';
    }

    /** The list of tokens, first to last. */
    private Token scanSource() {
        Token head = new Token('^', 0), last = head;
        for (int i = 0; i < length;) {
            int kind = text[i++];
            long value = 0;
            if (kind == 'n' || kind >= '0' && kind <= '9') {
                if (kind != 'n') {
                    i--;
                    kind = '0';
                }
                while (i < length && text[i] >= '0' && text[i] <= '9') {
                    value = 10 * value + (text[i++] - '0');
                }
            }
            Token next = new Token(kind, value);
            last.next = next;
            last = next;
        }
        return head.next;
    }

    /** The entry of a name in the unit's table, which gets it if it is new. */
    private static Entry lookUp(Entry[] table, int name) {
        for (Entry entry = table[name % BUCKETS]; entry != null; entry = entry.next) {
            if (entry.name == name) {
                entry.uses++;
                return entry;
            }
        }
        Entry entry = new Entry(name);
        entry.uses = 1;
        entry.next = table[name % BUCKETS];
        table[name % BUCKETS] = entry;
        return entry;
    }

    /** Parses from {@link #at}, which moves on. */
    private Tree parse(Entry[] table) {
        long kind = at.kind, value = at.value;
        at = at.next;
        if (kind == 'n') {
            Entry name = lookUp(table, (int) value);
            Tree tree = new Tree('n', value);
            tree.name = name;
            return tree;
        }
        if (kind == '0') {
            return new Tree('0', value);
        }
        if (kind != '(') {
            throw Vm.fail("'%c' where an expression begins: a token was lost", (int) kind);
        }
        Tree tree = new Tree(0, 0);
        tree.left = parse(table);
        tree.kind = at.kind;
        at = at.next;
        tree.right = parse(table);
        if (at.kind != ')') {
            throw Vm.fail("'%c' where ')' must be: a token was lost", (int) at.kind);
        }
        at = at.next;
        return tree;
    }

    private static long apply(long kind, long left, long right) {
        return kind == '+' ? left + right : kind == '-' ? left - right : left * right;
    }

    private static long argument(long name) {
        return Vm.mixed(name) >>> 40;
    }

    private static long evaluate(Tree tree) {
        if (tree.kind == '0') {
            return tree.value;
        }
        if (tree.kind == 'n') {
            if (tree.name.name != tree.value) {
                throw Vm.fail("name %d has the entry of %d", tree.value, tree.name.name);
            }
            return argument(tree.value);
        }
        return apply(tree.kind, evaluate(tree.left), evaluate(tree.right));
    }

    /** A new tree in which operations on constants are done. */
    private static Tree fold(Tree from) {
        if (from.kind == '0' || from.kind == 'n') {
            Tree tree = new Tree(from.kind, from.value);
            tree.name = from.name;
            return tree;
        }
        Tree left = fold(from.left), right = fold(from.right);
        if (left.kind == '0' && right.kind == '0') {
            return new Tree('0', apply(from.kind, left.value, right.value));
        }
        Tree tree = new Tree(from.kind, 0);
        tree.left = left;
        tree.right = right;
        return tree;
    }

    /** Code: word 0 is how much is used. Returns it, or one of twice the length when it was full. */
    private static long[] emit(long[] code, long kind, long value) {
        int used = (int) code[0], room = code.length - 1;
        if (used + 2 > room) {
            long[] longer = new long[1 + 2 * room];
            longer[0] = used;
            System.arraycopy(code, 1, longer, 1, used);
            code = longer;
        }
        code[1 + used] = kind;
        code[2 + used] = value;
        code[0] = used + 2;
        return code;
    }

    private static long[] generate(long[] code, Tree from) {
        if (from.left != null) {
            code = generate(code, from.left);
            code = generate(code, from.right);
        }
        return emit(code, from.kind, from.value);
    }

    private long execute(long[] code) {
        int top = 0, used = (int) code[0];
        for (int i = 0; i < used; i += 2) {
            long kind = code[1 + i], value = code[2 + i];
            if (kind == '0' || kind == 'n') {
                stack[top++] = kind == '0' ? value : argument(value);
            } else {
                top--;
                stack[top - 1] = apply(kind, stack[top - 1], stack[top]);
            }
        }
        return stack[0];
    }

    private long compileUnit(int number) {
        Vm.Random random = new Vm.Random(number);
        Entry[] table = new Entry[BUCKETS];
        // The unit keeps its folded trees and its code.
        Object[] unit = new Object[2 * FUNCTIONS];
        for (int f = 0; f < FUNCTIONS; f++) {
            length = 0;
            writeExpression(random, 6);
            at = scanSource();
            Tree parsed = parse(table), folded = fold(parsed);
            long[] code = generate(new long[17], folded);
            unit[2 * f] = folded;
            unit[2 * f + 1] = code;
            long value = evaluate(parsed);
            if (evaluate(folded) != value || execute(code) != value) {
                throw Vm.fail("unit %d, function %d: tree, folded tree and code do not agree", number, f);
            }
        }
        long sum = 0, used = 0;
        for (int f = 0; f < FUNCTIONS; f++) {
            long value = execute((long[]) unit[2 * f + 1]);
            if (evaluate((Tree) unit[2 * f]) != value) {
                throw Vm.fail("unit %d, function %d has changed", number, f);
            }
            sum += Vm.mixed(value + f);
        }
        for (Entry first : table) {
            for (Entry entry = first; entry != null; entry = entry.next) {
                used += entry.uses;
            }
        }
        return sum ^ used;
    }

    private static long compile(int number) {
        Compiler compiler = new Compiler();
        long sum = 0;
        for (int unit = number; unit < units; unit += Vm.threads) {
            sum += Vm.mixed(compiler.compileUnit(unit));
        }
        return sum;
    }

    public static void main(String[] arguments) {
        units = Vm.argument(Vm.begin("compiler", arguments), 0, "UNITS", 1, 100000000, 400);
        Vm.measure(() -> Vm.inThreads(Compiler::compile), (long) units * FUNCTIONS);
    }
}
