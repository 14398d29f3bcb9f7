/*
 * warehouse - orders in a company's warehouses, after SPECjbb2000: every thread has a warehouse of its own.
 *
 * usage: warehouse [OPTIONS] [TRANSACTIONS [ITEMS]]
 *
 * A warehouse has ITEMS stock records and DISTRICTS queues of open orders. TRANSACTIONS per thread: new orders of 5 to 15
 * lines, payments, deliveries of the oldest order of each district, and status checks. All state is in the heap; at the end
 * each warehouse's books must balance: what was ordered is what was delivered and what is still open.
 */
#include "vm.h"

static long transactions = 60000, items = 4000;

enum { DISTRICTS = 10, PART = 500, OPEN_MOST = 40 };

/* Warehouse: parts of the stock, then for each district the first and the last open order. */
enum { NUMBER, QUANTITY, PRICE };                /* words of a stock record */
enum { LINE_NEXT, LINE_STOCK, LINE_REFS };       /* of an order line */
enum { LINE_NUMBER, LINE_AMOUNT, LINE_WORDS };
enum { ORDER_NEXT, ORDER_LINES, ORDER_REFS };    /* of an order */
enum { ORDER_NUMBER, ORDER_TOTAL, ORDER_COUNT, ORDER_WORDS };

static VmClass stock_class = {.refs = 0, .words = PRICE + 1};
static VmClass line_class = {.refs = LINE_REFS, .words = LINE_WORDS};
static VmClass order_class = {.refs = ORDER_REFS, .words = ORDER_WORDS};

static size_t parts(void) {
    return (items + PART - 1) / PART;
}

static Ref stock_of(Ref warehouse, long item) {
    return get(get(warehouse, item / PART), item % PART);
}

static size_t first_of(int district) {
    return parts() + 2 * district;
}

/* What is to be paid for an order; checks that its lines add up. No safepoint. */
static uint64_t total_of(Ref order) {
    uint64_t total = 0, count = 0;
    for (Ref line = get(order, ORDER_LINES); line; line = get(line, LINE_NEXT)) {
        Ref stock = get(line, LINE_STOCK);
        if (*word_of(stock, NUMBER) != *word_of(line, LINE_NUMBER))
            fail("an order line of item %" PRIu64 " has the record of %" PRIu64, *word_of(line, LINE_NUMBER),
                 *word_of(stock, NUMBER));
        total += *word_of(line, LINE_AMOUNT) * *word_of(stock, PRICE);
        count++;
    }
    if (total != *word_of(order, ORDER_TOTAL) || count != *word_of(order, ORDER_COUNT))
        fail("order %" PRIu64 " does not add up", *word_of(order, ORDER_NUMBER));
    return total;
}

static uint64_t new_order(Thread *thread, Ref *warehouse, int district, uint64_t number, uint64_t *random) {
    ROOTS(thread, 2);
    root[0] = make_one(thread, &order_class, number);
    long count = 5 + random_next(random) % 11;
    uint64_t total = 0;
    for (long i = 0; i < count; i++) {
        long item = random_next(random) % items;
        uint64_t amount = 1 + random_next(random) % 9;
        Ref line = make_one(thread, &line_class, item);
        *word_of(line, LINE_AMOUNT) = amount;
        Ref stock = stock_of(*warehouse, item);
        set(thread, line, LINE_STOCK, stock);
        set(thread, line, LINE_NEXT, get(root[0], ORDER_LINES));
        set(thread, root[0], ORDER_LINES, line);
        *word_of(stock, QUANTITY) += amount;
        total += amount * *word_of(stock, PRICE);
        /* The customer's copy of the line, which nobody keeps. */
        make(thread, 1, 6 + item % 10, item);
    }
    *word_of(root[0], ORDER_TOTAL) = total;
    *word_of(root[0], ORDER_COUNT) = count;
    Ref last = get(*warehouse, first_of(district) + 1);
    if (last)
        set(thread, last, ORDER_NEXT, root[0]);
    else
        set(thread, *warehouse, first_of(district), root[0]);
    set(thread, *warehouse, first_of(district) + 1, root[0]);
    DONE(thread);
    return total;
}

/* Takes the oldest order out; returns what is to be paid for it. */
static uint64_t deliver(Thread *thread, Ref warehouse, int district) {
    Ref order = get(warehouse, first_of(district));
    if (!order)
        return 0;
    Ref next = get(order, ORDER_NEXT);
    set(thread, warehouse, first_of(district), next);
    if (!next)
        set(thread, warehouse, first_of(district) + 1, 0);
    return total_of(order);
}

static uint64_t run(Thread *thread, long number) {
    uint64_t random = number + 1, ordered = 0, delivered = 0, orders = 0, open[DISTRICTS] = {0};
    ROOTS(thread, 1);
    root[0] = make(thread, parts() + 2 * DISTRICTS, 1, number);
    for (size_t part = 0; part < parts(); part++) {
        Ref slots = make(thread, PART, 0, 0);
        set(thread, root[0], part, slots);
    }
    for (long item = 0; item < items; item++) {
        Ref stock = make_one(thread, &stock_class, item);
        *word_of(stock, PRICE) = 1 + mixed(item) % 1000;
        set(thread, get(root[0], item / PART), item % PART, stock);
    }
    for (long i = 0; i < transactions; i++) {
        larder_vm_poll(thread);
        uint64_t r = random_next(&random);
        int district = r % DISTRICTS;
        switch (r >> 8 & 15) {
        case 0 ... 6:
            ordered += new_order(thread, root, district, orders++, &random);
            if (++open[district] <= OPEN_MOST)
                break;
            /* fall through */
        case 7:
            for (int d = 0; d < DISTRICTS; d++)
                if (open[d]) {
                    delivered += deliver(thread, root[0], d);
                    open[d]--;
                }
            break;
        case 8 ... 13:
            /* A payment: a receipt that is printed and thrown away. */
            make(thread, 0, 10 + r % 30, i);
            break;
        default:
            if (get(root[0], first_of(district)))
                total_of(get(root[0], first_of(district)));
        }
    }
    uint64_t left = 0;
    for (int district = 0; district < DISTRICTS; district++)
        while (open[district]--)
            left += deliver(thread, root[0], district);
    if (ordered != delivered + left)
        fail("warehouse %ld: ordered for %" PRIu64 ", delivered for %" PRIu64, number, ordered, delivered + left);
    uint64_t sum = mixed(ordered) ^ mixed(orders);
    for (long item = 0; item < items; item++)
        sum += mixed(*word_of(stock_of(root[0], item), QUANTITY) + item);
    DONE(thread);
    return sum;
}

int main(int argc, char **argv) {
    int left = vm_begin(argc, argv);
    if (left > 1)
        transactions = vm_number("TRANSACTIONS", argv[1], 1, 2000000000);
    if (left > 2)
        items = vm_number("ITEMS", argv[2], 10, 10000000);
    vm_declare(&stock_class);
    vm_declare(&line_class);
    vm_declare(&order_class);
    return vm_end("warehouse", vm_in_threads(run), transactions * vm_threads);
}
