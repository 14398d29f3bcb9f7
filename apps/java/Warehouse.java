/**
 * warehouse - orders in a company's warehouses, after SPECjbb2000: every thread has a warehouse of its own. See
 * {@code ../vm/warehouse.c}.
 *
 * <p>usage: java Warehouse [--threads N] [--warm N] [TRANSACTIONS [ITEMS]]
 */
final class Warehouse {
    private static final int DISTRICTS = 10, PART = 500, OPEN_MOST = 40;

    private static int transactions, items;

    private static final class Stock {
        final int number;
        long quantity;
        final long price;

        Stock(int number, long price) {
            this.number = number;
            this.price = price;
        }
    }

    private static final class Line {
        Line next;
        final Stock stock;
        final long number, amount;

        Line(Stock stock, long number, long amount) {
            this.stock = stock;
            this.number = number;
            this.amount = amount;
        }
    }

    private static final class Order {
        Order next;
        Line lines;
        final long number;
        long total;
        int count;

        Order(long number) {
            this.number = number;
        }
    }

    /** Parts of the stock, then for each district the first and the last open order: one object, as in C. */
    private final Object[] state = new Object[parts() + 2 * DISTRICTS];
    private final int number;

    private Warehouse(int number) {
        this.number = number;
    }

    private static int parts() {
        return (items + PART - 1) / PART;
    }

    private Stock stockOf(int item) {
        return (Stock) ((Object[]) state[item / PART])[item % PART];
    }

    private static int firstOf(int district) {
        return parts() + 2 * district;
    }

    /** What is to be paid for an order; checks that its lines add up. */
    private static long totalOf(Order order) {
        long total = 0, count = 0;
        for (Line line = order.lines; line != null; line = line.next) {
            if (line.stock.number != line.number) {
                throw Vm.fail("an order line of item %d has the record of %d", line.number, line.stock.number);
            }
            total += line.amount * line.stock.price;
            count++;
        }
        if (total != order.total || count != order.count) {
            throw Vm.fail("order %d does not add up", order.number);
        }
        return total;
    }

    /** What nobody keeps. Without escape analysis it is made all the same. */
    private static void makeScrap(int words, long value) {
        long[] scrap = new long[words];
        scrap[0] = value;
    }

    private long newOrder(int district, long number, Vm.Random random) {
        Order order = new Order(number);
        int count = 5 + Vm.modulo(random.next(), 11);
        long total = 0;
        for (int i = 0; i < count; i++) {
            int item = Vm.modulo(random.next(), items);
            long amount = 1 + Vm.modulo(random.next(), 9);
            Stock stock = stockOf(item);
            Line line = new Line(stock, item, amount);
            line.next = order.lines;
            order.lines = line;
            stock.quantity += amount;
            total += amount * stock.price;
            // The customer's copy of the line, which nobody keeps.
            makeScrap(6 + item % 10, item);
        }
        order.total = total;
        order.count = count;
        Order last = (Order) state[firstOf(district) + 1];
        if (last != null) {
            last.next = order;
        } else {
            state[firstOf(district)] = order;
        }
        state[firstOf(district) + 1] = order;
        return total;
    }

    /** Takes the oldest order out; returns what is to be paid for it. */
    private long deliver(int district) {
        Order order = (Order) state[firstOf(district)];
        if (order == null) {
            return 0;
        }
        state[firstOf(district)] = order.next;
        if (order.next == null) {
            state[firstOf(district) + 1] = null;
        }
        return totalOf(order);
    }

    private long work() {
        Vm.Random random = new Vm.Random(number + 1);
        long ordered = 0, delivered = 0, orders = 0;
        int[] open = new int[DISTRICTS];
        for (int part = 0; part < parts(); part++) {
            state[part] = new Object[PART];
        }
        for (int item = 0; item < items; item++) {
            ((Object[]) state[item / PART])[item % PART] = new Stock(item, 1 + Vm.modulo(Vm.mixed(item), 1000));
        }
        for (int i = 0; i < transactions; i++) {
            long r = random.next();
            int district = Vm.modulo(r, DISTRICTS), kind = (int) (r >>> 8) & 15;
            if (kind <= 6) {
                ordered += newOrder(district, orders++, random);
            }
            if (kind <= 6 ? ++open[district] > OPEN_MOST : kind == 7) {
                for (int d = 0; d < DISTRICTS; d++) {
                    if (open[d] > 0) {
                        delivered += deliver(d);
                        open[d]--;
                    }
                }
            } else if (kind >= 8 && kind <= 13) {
                // A payment: a receipt that is printed and thrown away.
                makeScrap(10 + Vm.modulo(r, 30), i);
            } else if (kind > 13 && state[firstOf(district)] != null) {
                totalOf((Order) state[firstOf(district)]);
            }
        }
        long left = 0;
        for (int district = 0; district < DISTRICTS; district++) {
            while (open[district]-- > 0) {
                left += deliver(district);
            }
        }
        if (ordered != delivered + left) {
            throw Vm.fail("warehouse %d: ordered for %d, delivered for %d", number, ordered, delivered + left);
        }
        long sum = Vm.mixed(ordered) ^ Vm.mixed(orders);
        for (int item = 0; item < items; item++) {
            sum += Vm.mixed(stockOf(item).quantity + item);
        }
        return sum;
    }

    public static void main(String[] arguments) {
        String[] sizes = Vm.begin("warehouse", arguments);
        transactions = Vm.argument(sizes, 0, "TRANSACTIONS", 1, 2000000000, 60000);
        items = Vm.argument(sizes, 1, "ITEMS", 10, 10000000, 4000);
        Vm.measure(() -> Vm.inThreads(number -> new Warehouse(number).work()), (long) transactions * Vm.threads);
    }
}
