// xtask: larder-headers
/* The thesis's interface for C++. */
#include <sgc_cpp.h>

struct Node : gc {
    Node *next;
};

int main() {
    if (SGC_init(1, 0) != 0) return 1;
    Node *list = 0;
    for (int i = 0; i < 100000; i++) {
        Node *node = new Node;
        node->next = i % 100 ? list : 0;
        list = node;
    }
    int *numbers = new (PointerFreeGC) int[100];
    numbers[99] = 1;
    GC_collect();
    return list->next != 0 && GC_gc_no >= 1 ? 0 : 1;
}
