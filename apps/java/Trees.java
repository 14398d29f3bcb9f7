/**
 * trees - binary trees of many depths beside a large one that stays. See {@code ../vm/trees.c}.
 *
 * <p>usage: java Trees [--threads N] [--warm N] [NODES [DEPTH]]
 */
final class Trees {
    private static final int LEAST_DEPTH = 4;

    private static int nodes, deepest;

    /** A node's number is 1 at the root, and 2n and 2n + 1 below n. */
    private static final class Node {
        Node left, right;
        final int number;

        Node(int number) {
            this.number = number;
        }
    }

    private static Node lasting;

    private static Node fromLeaves(int depth, int number) {
        if (depth == 0) {
            return null;
        }
        Node left = fromLeaves(depth - 1, 2 * number), right = fromLeaves(depth - 1, 2 * number + 1);
        Node tree = new Node(number);
        tree.left = left;
        tree.right = right;
        return tree;
    }

    private static void grow(Node tree, int depth) {
        if (depth == 1) {
            return;
        }
        tree.left = new Node(2 * tree.number);
        tree.right = new Node(2 * tree.number + 1);
        grow(tree.left, depth - 1);
        grow(tree.right, depth - 1);
    }

    /** How many nodes there are; ends the program at one that is not what it was. */
    private static long count(Node tree, int number) {
        if (tree == null) {
            return 0;
        }
        if (tree.number != number) {
            throw Vm.fail("node %d became %d", number, tree.number);
        }
        return 1 + count(tree.left, 2 * number) + count(tree.right, 2 * number + 1);
    }

    private static long build(int number) {
        long sum = 0;
        int kinds = (deepest - LEAST_DEPTH) / 2 + 1;
        for (int depth = LEAST_DEPTH; depth <= deepest; depth += 2) {
            int trees = nodes / Vm.threads / kinds >> depth;
            for (int i = 0; i < trees + 1; i++) {
                Node root;
                if (i % 2 == 1) {
                    root = fromLeaves(depth, 1);
                } else {
                    root = new Node(1);
                    grow(root, depth);
                }
                if (count(root, 1) != (1L << depth) - 1) {
                    throw Vm.fail("a tree of %d levels has lost nodes", depth);
                }
                sum += (1L << depth) - 1;
            }
        }
        return sum;
    }

    private static long run() throws Exception {
        lasting = fromLeaves(deepest, 1);
        Vm.inThreads(Trees::build);
        long left = count(lasting, 1);
        if (left != (1L << deepest) - 1) {
            throw Vm.fail("the tree that stays has %d nodes", left);
        }
        lasting = null;
        return Vm.mixed(left);
    }

    public static void main(String[] arguments) {
        String[] sizes = Vm.begin("trees", arguments);
        nodes = Vm.argument(sizes, 0, "NODES", 1, 2000000000, 2000000);
        deepest = Vm.argument(sizes, 1, "DEPTH", LEAST_DEPTH, 24, 14);
        Vm.measure(Trees::run, made());
    }

    /** Nodes that all threads make. */
    private static long made() {
        int kinds = (deepest - LEAST_DEPTH) / 2 + 1;
        long sum = 0;
        for (int depth = LEAST_DEPTH; depth <= deepest; depth += 2) {
            sum += Vm.threads * ((nodes / Vm.threads / kinds >> depth) + 1L) * ((1L << depth) - 1);
        }
        return sum;
    }
}
