//! Finalizers: functions that are called with an object once the program cannot reach it any more.
//!
//! The rules are libgc's, which unmodified programs rely on (Boehm, "Destructors, finalizers, and synchronization",
//! POPL 2003; `gc.h`). A collection has marked what the roots reach; [`Finalizers::process`] then
//!
//! 1. goes through the registered objects that are not marked and marks what each one refers to, as its [`Order`]
//!    says. What is marked now is needed by the finalizer of something else, and waits for a later collection: of a
//!    chain, only the outermost object goes. An object that its own closure reaches is on a cycle, and never goes;
//! 2. takes the objects that are still not marked out of the table and queues them, marked, so that they and what they
//!    refer to live until their finalizers have run. The program may then revive them.
//!
//! With *Java finalization* (libgc's name for it; Debian's default), an object of [`Order::Unreachable`] also waits
//! while an object that is queued without order can reach it.
//!
//! **Afterwards every registered or queued object is marked, and everything that one of them can reach**, provided that
//! the words of [`Finalizers::push_roots`] were among the roots. libgc promises as much only under Java finalization;
//! without it, it frees what an unordered object refers to before the finalizer runs. Two smaller differences: the
//! queue is first in, first out, where libgc's is last in, first out; and libgc puts an `Unreachable` object back when
//! another collection comes before its finalizer could run, here it stays queued.
//!
//! An entry keeps its place in memory from its registration until its finalizer is taken: the hash table only says where
//! it is, and the queue is a list through the entries. So queueing an object writes to memory that its registration
//! wrote to before, and a collection neither asks the kernel for memory nor touches a page for the first time. The
//! candidates of step 1 are linked into a list of their own, from which step 2 drops those that were marked meanwhile:
//! a collection walks over the entries once.
//!
//! The table and the queue lie outside the heap and are not roots; [`Finalizers::push_roots`] says which of their words
//! are. All of this runs under the allocation lock; finalizers themselves are called without it.

use core::ffi::c_void;

use crate::links::Reachability;
pub use crate::table::NoMemory;
use crate::table::{Array, Table, Zeroed, fitting_capacity};

/// A finalizer: it gets the object and the client data it was registered with.
pub type FinalizerFn = unsafe extern "C" fn(object: *mut c_void, client_data: *mut c_void);

/// Which references of a dead object make other finalizable objects wait for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Order {
    /// All of them. An object on a cycle is never finalized.
    Normal = 0,
    /// All but those from the object directly to itself.
    IgnoreSelf = 1,
    /// None: the object is finalized once no root and no ordered finalizable object reaches it.
    NoOrder = 2,
    /// All of them, and with Java finalization the object itself waits for `NoOrder` objects that reach it.
    Unreachable = 3,
}

/// What an entry is now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum State {
    /// Nothing; it is in the list of free entries, or was never used.
    Free = 0,
    /// A registration; the index knows it.
    Registered = 1,
    /// In the queue; the index does not know it.
    Ready = 2,
}

/// One object and its finalizer.
#[derive(Clone, Copy)]
struct Entry {
    object: usize,
    /// `None` only in an entry that was never used.
    finalizer: Option<FinalizerFn>,
    client_data: usize,
    /// The number of the next entry in whichever list this one is in.
    next: u32,
    order: Order,
    state: State,
}

const _: () = assert!(size_of::<Entry>() == 32);

// SAFETY: zero is an address, no finalizer, no client data, entry 0, the normal order, and a free entry.
unsafe impl Zeroed for Entry {}

/// A list of entries, by number, first in, first out. What follows the last one means nothing.
#[derive(Clone, Copy)]
struct List {
    first: u32,
    last: u32,
    len: usize,
}

impl List {
    const EMPTY: Self = Self { first: 0, last: 0, len: 0 };

    fn append(&mut self, entries: &mut [Entry], number: u32) {
        if self.len == 0 {
            self.first = number;
        } else {
            entries[self.last as usize].next = number;
        }
        self.last = number;
        self.len += 1;
    }

    fn append_list(&mut self, entries: &mut [Entry], other: Self) {
        if other.len > 0 {
            self.append(entries, other.first);
            self.last = other.last;
            self.len += other.len - 1;
        }
    }

    fn pop(&mut self, entries: &[Entry]) -> Option<u32> {
        let number = (self.len > 0).then_some(self.first)?;
        self.first = entries[number as usize].next;
        self.len -= 1;
        Some(number)
    }

    fn iter(self, entries: &[Entry]) -> impl Iterator<Item = &Entry> {
        let mut rest = self;
        core::iter::from_fn(move || rest.pop(entries).map(|number| &entries[number as usize]))
    }

    /// The list without the entries for which `keep` says no.
    fn filtered(mut self, entries: &mut [Entry], mut keep: impl FnMut(&Entry) -> bool) -> Self {
        let mut kept = Self::EMPTY;
        while let Some(number) = self.pop(entries) {
            if keep(&entries[number as usize]) {
                kept.append(entries, number);
            }
        }
        kept
    }
}

/// The registered finalizers, and the queue of those that may run.
///
/// Invariants: an entry below `used` is registered, and then the index has its number under its object; or it is in the
/// queue; or it is free, and in `free`. Entries from `used` on are free and in no list.
pub struct Finalizers {
    entries: Array<Entry>,
    used: usize,
    index: Table<usize>,
    queue: List,
    free: List,
}

impl Finalizers {
    /// An empty table, which has no memory yet.
    pub const fn new() -> Self {
        Self { entries: Array::EMPTY, used: 0, index: Table::new(), queue: List::EMPTY, free: List::EMPTY }
    }

    /// Replaces the finalizer of `object`, or removes it if `finalizer` is `None`, and returns the old one with its
    /// client data.
    ///
    /// `object` is the start of a heap object. Only a first registration needs memory. An object in the queue is not
    /// registered: registering it gives it one more finalizer.
    pub fn register(
        &mut self,
        object: usize,
        finalizer: Option<FinalizerFn>,
        client_data: usize,
        order: Order,
    ) -> Result<(Option<FinalizerFn>, usize), NoMemory> {
        let present = self.index.get(object);
        let old = present.map_or((None, 0), |n| (self.entries[n].finalizer, self.entries[n].client_data));
        let new = Entry { object, finalizer, client_data, next: 0, order, state: State::Registered };
        match (present, finalizer) {
            (None, None) => {}
            (Some(number), Some(_)) => self.entries[number] = new,
            (Some(number), None) => {
                self.index.remove(object);
                self.release(number as u32);
            }
            (None, Some(_)) => {
                self.reserve()?;
                let number = match self.free.pop(&self.entries) {
                    Some(number) => number as usize,
                    None => {
                        self.used += 1;
                        self.used - 1
                    }
                };
                self.entries[number] = new;
                self.index.insert(object, number);
            }
        }
        Ok(old)
    }

    /// Finalization in one collection: queues the objects whose turn has come, and returns how many.
    ///
    /// The marker has finished, and short links of unmarked objects are cleared. `java` chooses Java finalization.
    /// `on_cycle` gets an object of each cycle that this comes upon, which is not finalized while the cycle lasts; it
    /// is called in the stopped world.
    pub fn process(&mut self, marks: &mut impl Reachability, java: bool, mut on_cycle: impl FnMut(usize)) -> usize {
        self.index.before_thinning();
        let entries = &mut *self.entries;
        let mut candidates = List::EMPTY;
        for number in 0..self.used {
            let Entry { object, order, state, .. } = entries[number];
            if state != State::Registered || marks.is_marked(object) {
                continue;
            }
            candidates.append(entries, number as u32);
            match order {
                Order::NoOrder => continue,
                Order::IgnoreSelf => marks.mark_from(object, true),
                Order::Normal | Order::Unreachable => marks.mark_from(object, false),
            }
            if marks.is_marked(object) {
                on_cycle(object);
            }
        }
        // Marks only grow, so what is unmarked now was unmarked at its turn above: no object is missed.
        candidates = candidates.filtered(entries, |entry| !marks.is_marked(entry.object));

        // Of these, only the unordered ones have not yet had what they refer to marked.
        for entry in candidates.iter(entries).filter(|entry| entry.order == Order::NoOrder) {
            marks.mark_from(entry.object, false);
        }
        if java {
            let waits = |entry: &Entry| entry.order == Order::Unreachable && marks.is_marked(entry.object);
            candidates = candidates.filtered(entries, |entry| !waits(entry));
        }
        for entry in candidates.iter(entries) {
            marks.set_mark(entry.object);
        }
        self.enqueue(candidates);
        candidates.len
    }

    /// Gives `f` each word that is a root: the client data of every entry, and the objects in the queue.
    ///
    /// A concurrent cycle asks again in its last pause, because registrations go on while it marks.
    pub fn push_roots(&self, mut f: impl FnMut(usize)) {
        for entry in &self.entries[..self.used] {
            if entry.state == State::Ready {
                f(entry.object);
            }
            if entry.state != State::Free {
                f(entry.client_data);
            }
        }
    }

    /// How many finalizers may run now.
    pub const fn ready(&self) -> usize {
        self.queue.len
    }

    /// Takes the finalizer that has been ready for longest, with its object and client data.
    ///
    /// From here on the caller keeps object and client data alive, by having them on its stack, and calls the finalizer
    /// without the lock.
    pub fn take_ready(&mut self) -> Option<(FinalizerFn, usize, usize)> {
        let number = self.queue.pop(&self.entries)?;
        let Entry { object, finalizer, client_data, .. } = self.entries[number as usize];
        self.release(number);
        Some((finalizer.expect("an entry in the queue has a finalizer"), object, client_data))
    }

    /// Gives `f` the `count` objects that were queued last: after [`process`](Self::process), those that it queued.
    pub fn newest(&self, count: usize, f: impl FnMut(usize)) {
        let before = self.queue.len.saturating_sub(count);
        self.queue.iter(&self.entries).skip(before).map(|entry| entry.object).for_each(f);
    }

    /// Gives `f` each registered object that is not in the queue.
    pub fn for_each_registered(&self, f: impl FnMut(usize)) {
        let registered = self.entries[..self.used].iter().filter(|entry| entry.state == State::Registered);
        registered.map(|entry| entry.object).for_each(f);
    }

    /// Queues every registered object, whether it can be reached or not, and returns how many there were.
    pub fn queue_all(&mut self) -> usize {
        let mut all = List::EMPTY;
        for number in 0..self.used {
            if self.entries[number].state == State::Registered {
                all.append(&mut self.entries, number as u32);
            }
        }
        self.enqueue(all);
        all.len
    }

    /// How many objects have a finalizer that is not in the queue.
    pub const fn len(&self) -> usize {
        self.index.len()
    }

    /// Whether no object has a finalizer that is not in the queue.
    pub const fn is_empty(&self) -> bool {
        self.index.is_empty()
    }

    /// Moves registered entries to the end of the queue.
    fn enqueue(&mut self, list: List) {
        let mut rest = list;
        while let Some(number) = rest.pop(&self.entries) {
            let entry = &mut self.entries[number as usize];
            entry.state = State::Ready;
            self.index.remove(entry.object);
        }
        self.queue.append_list(&mut self.entries, list);
    }

    /// Makes an entry free that is in no list and not in the index.
    fn release(&mut self, number: u32) {
        self.entries[number as usize].state = State::Free;
        self.free.append(&mut self.entries, number);
        if self.occupied() == 0 {
            // Nor is there anything to walk over.
            (self.used, self.free) = (0, List::EMPTY);
        }
    }

    /// Entries that are not free.
    fn occupied(&self) -> usize {
        self.queue.len + self.index.len()
    }

    /// Makes room for one more registration. It may also give memory back.
    fn reserve(&mut self) -> Result<(), NoMemory> {
        self.index.reserve()?;
        let capacity = fitting_capacity(self.entries.len(), self.occupied() + 1, self.index.usual());
        // Entries have numbers of 32 bits.
        if capacity > 1 << 32 {
            return Err(NoMemory);
        }
        if capacity == self.entries.len() {
            return Ok(());
        }
        match Array::map(capacity) {
            Ok(entries) => {
                self.move_to(entries);
                Ok(())
            }
            // A table that stays too large is no failure.
            Err(NoMemory) if capacity < self.entries.len() => Ok(()),
            Err(NoMemory) => Err(NoMemory),
        }
    }

    /// Moves the queue, in its order, and then the registered entries to new memory, without gaps.
    fn move_to(&mut self, mut entries: Array<Entry>) {
        let mut queue = List::EMPTY;
        let mut used = 0;
        for &entry in self.queue.iter(&self.entries) {
            entries[used] = entry;
            queue.append(&mut entries, used as u32);
            used += 1;
        }
        for &entry in self.entries[..self.used].iter().filter(|entry| entry.state == State::Registered) {
            entries[used] = entry;
            *self.index.get_mut(entry.object).expect("the index knows a registered entry") = used;
            used += 1;
        }
        (self.entries, self.used, self.queue, self.free) = (entries, used, queue, List::EMPTY);
    }
}

impl Default for Finalizers {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::links::Links;
    use crate::links::model_heap::{Heap, WORDS};
    use crate::table::{Random, refusal};
    use std::collections::{HashMap, HashSet, VecDeque};

    unsafe extern "C" fn finalizer(_: *mut c_void, _: *mut c_void) {}
    /// Does something, so that an optimizing compiler keeps it apart.
    unsafe extern "C" fn other_finalizer(object: *mut c_void, _: *mut c_void) {
        core::hint::black_box(object);
    }

    const ORDERS: [Order; 4] = [Order::Normal, Order::IgnoreSelf, Order::NoOrder, Order::Unreachable];

    /// A heap with its finalizers. Objects are known by their numbers.
    struct World {
        heap: Heap,
        finalizers: Finalizers,
        cycles: Vec<usize>,
        java: bool,
    }

    impl World {
        fn new<const N: usize>(objects: usize, java: bool, references: [(usize, usize); N]) -> Self {
            let heap = Heap::new(objects);
            for (from, to) in references {
                let word = (0..WORDS).find(|&word| heap.read(from, word) == 0).unwrap();
                heap.point(from, word, to);
            }
            Self { heap, finalizers: Finalizers::new(), cycles: Vec::new(), java }
        }

        /// Gives each of the objects its first finalizer.
        fn register(&mut self, objects: &[usize], order: Order) {
            for &object in objects {
                let old = self.finalizers.register(self.heap.address(object), Some(finalizer), 0, order);
                assert_eq!(old, Ok((None, 0)));
            }
        }

        fn mark(&mut self, roots: &[usize]) {
            let mut words: Vec<usize> = roots.iter().map(|&object| self.heap.address(object)).collect();
            self.finalizers.push_roots(|word| words.push(word));
            self.heap.mark(words);
        }

        /// Finalization as in a collection, without memory; returns which objects it queued, sorted.
        fn process(&mut self) -> Vec<usize> {
            self.cycles.clear();
            let count = refusal::during(|| {
                let (heap, cycles) = (&mut self.heap, &mut self.cycles);
                self.finalizers.process(heap, self.java, |object| cycles.push(object))
            });
            self.cycles.iter_mut().for_each(|object| *object = self.heap.object(*object).unwrap());
            let mut queued = Vec::new();
            self.finalizers.newest(count, |object| queued.push(self.heap.object(object).unwrap()));
            assert_eq!(queued.len(), count);
            self.assert_nothing_needed_is_unmarked();
            queued.sort_unstable();
            queued
        }

        fn collect(&mut self, roots: &[usize]) -> Vec<usize> {
            self.mark(roots);
            self.process()
        }

        fn assert_nothing_needed_is_unmarked(&self) {
            for entry in &self.finalizers.entries[..self.finalizers.used] {
                assert!(entry.state == State::Free || self.heap.is_marked(entry.object));
            }
            for object in (0..self.heap.len()).filter(|&object| self.heap.is_live(object)) {
                assert!(self.heap.children(object).into_iter().all(|child| self.heap.is_live(child)));
            }
        }

        fn take(&mut self) -> Option<usize> {
            self.finalizers.take_ready().map(|(_, object, _)| self.heap.object(object).unwrap())
        }

        fn take_all(&mut self) -> Vec<usize> {
            core::iter::from_fn(|| self.take()).collect()
        }
    }

    #[test]
    fn an_object_is_finalized_once_and_only_when_no_root_reaches_it() {
        for order in ORDERS {
            let mut world = World::new(3, true, [(0, 1), (1, 2)]);
            world.register(&[1], order);
            assert_eq!(world.collect(&[0]), []);
            assert_eq!(world.collect(&[]), [1]);
            assert_eq!((world.finalizers.len(), world.finalizers.ready()), (0, 1));
            // It waits for its finalizer through further collections, with what it refers to.
            assert_eq!(world.collect(&[]), []);
            assert!(world.heap.is_live(1) && world.heap.is_live(2) && !world.heap.is_live(0));
            assert_eq!(world.take_all(), [1]);
            assert_eq!(world.collect(&[]), []);
            assert!(!world.heap.is_live(1));
        }
    }

    #[test]
    fn a_chain_is_finalized_from_outside_in_one_object_a_collection() {
        for java in [false, true] {
            let mut world = World::new(4, java, [(0, 1), (1, 2), (2, 3)]);
            world.register(&[3, 1, 0, 2], Order::Normal);
            for object in 0..4 {
                assert_eq!(world.collect(&[]), [object]);
                // Until its finalizer has run, the object in the queue is a reason for the next to wait.
                assert_eq!(world.collect(&[]), []);
                assert_eq!(world.take_all(), [object]);
            }
            assert!(world.finalizers.is_empty());
        }
    }

    #[test]
    fn a_cycle_is_reported_and_never_finalized() {
        let mut world = World::new(4, true, [(0, 1), (1, 2), (2, 0), (3, 3)]);
        world.register(&[0, 1, 3], Order::Normal);
        for _ in 0..3 {
            assert_eq!(world.collect(&[]), []);
            assert_eq!(world.cycles, [0, 3]);
        }
        assert_eq!(world.finalizers.len(), 3);
    }

    #[test]
    fn a_short_link_breaks_a_cycle() {
        let (mut world, mut links) = (World::new(2, true, [(0, 1), (1, 0)]), Links::new());
        world.register(&[0, 1], Order::Normal);
        links.register(world.heap.field(1, 0), world.heap.address(1)).unwrap();
        world.mark(&[]);
        // SAFETY: the link is a word of the test's heap.
        assert_eq!(unsafe { links.clear_dead(&world.heap) }, 1);
        assert_eq!(world.process(), [0]);
        assert_eq!(world.take_all(), [0]);
        assert_eq!(world.collect(&[]), [1]);
    }

    #[test]
    fn a_long_link_outlives_the_finalizer_of_its_object() {
        let (mut world, mut long) = (World::new(2, true, []), Links::new());
        world.register(&[1], Order::Normal);
        world.heap.write(0, 0, !world.heap.address(1));
        long.register(world.heap.field(0, 0), world.heap.address(1)).unwrap();
        for (queued, cleared) in [(vec![1], 0), (vec![], 0), (vec![], 1)] {
            assert_eq!(world.collect(&[0]), queued);
            // SAFETY: the link is a word of the test's heap.
            assert_eq!(unsafe { long.clear_dead(&world.heap) }, cleared);
            if queued.is_empty() {
                world.take();
            }
        }
    }

    #[test]
    fn ignore_self_ignores_direct_references_only() {
        let mut world = World::new(4, true, [(0, 0), (0, 1), (2, 3), (3, 2)]);
        world.register(&[0, 1, 2], Order::IgnoreSelf);
        assert_eq!(world.collect(&[]), [0]);
        assert_eq!(world.cycles, [2]);
        world.take_all();
        assert_eq!(world.collect(&[]), [1]);
        assert_eq!(world.collect(&[]), []);
    }

    #[test]
    fn unordered_objects_go_at_once_with_all_they_refer_to() {
        for java in [false, true] {
            let mut world = World::new(5, java, [(0, 1), (1, 2), (2, 0), (2, 3), (3, 4)]);
            world.register(&[0, 1, 2], Order::NoOrder);
            assert_eq!(world.collect(&[]), [0, 1, 2]);
            assert!((0..5).all(|object| world.heap.is_live(object)));
            assert!(world.cycles.is_empty());
            assert_eq!(world.take_all().len(), 3);
            world.collect(&[]);
            assert!((0..5).all(|object| !world.heap.is_live(object)));
        }
    }

    #[test]
    fn an_unordered_object_waits_for_ordered_ones_but_not_the_reverse() {
        let mut world = World::new(4, true, [(0, 1), (2, 3)]);
        world.register(&[0, 3], Order::Normal);
        world.register(&[1, 2], Order::NoOrder);
        assert_eq!(world.collect(&[]), [0, 2, 3]);
    }

    #[test]
    fn an_unreachable_object_waits_for_unordered_ones_under_java_finalization() {
        for java in [false, true] {
            let mut world = World::new(4, java, [(0, 1), (1, 2), (3, 3)]);
            world.register(&[0], Order::NoOrder);
            world.register(&[2], Order::Unreachable);
            world.register(&[3], Order::Unreachable);
            assert_eq!(world.collect(&[]), if java { vec![0] } else { vec![0, 2] });
            assert_eq!(world.cycles, [3]);
            assert_eq!(world.collect(&[]), []);
            world.take();
            assert_eq!(world.collect(&[]), if java { vec![2] } else { vec![] });
            // Unlike libgc, another collection before the finalizer could run does not take it back.
            assert_eq!(world.collect(&[]), []);
            assert_eq!(world.take_all(), [2]);
        }
    }

    #[test]
    fn client_data_is_a_root_and_the_object_is_not() {
        let mut world = World::new(3, true, [(1, 2)]);
        let [object, data] = [0, 1].map(|object| world.heap.address(object));
        world.finalizers.register(object, Some(finalizer), data, Order::NoOrder).unwrap();
        assert_eq!(world.collect(&[0]), []);
        assert!(world.heap.is_live(1) && world.heap.is_live(2));
        assert_eq!(world.collect(&[]), [0]);
        world.mark(&[]);
        assert!((0..3).all(|object| world.heap.is_live(object)));
        let (f, taken, client_data) = world.finalizers.take_ready().unwrap();
        assert!(core::ptr::fn_addr_eq(f, finalizer as FinalizerFn));
        assert_eq!((taken, client_data), (object, data));
        world.mark(&[]);
        assert!((0..3).all(|object| !world.heap.is_live(object)));
        // An object that is its own client data can be reached by that, whatever its order.
        world.finalizers.register(object, Some(finalizer), object, Order::NoOrder).unwrap();
        assert_eq!(world.collect(&[]), []);
    }

    #[test]
    fn a_registration_replaces_or_removes_the_one_before() {
        let mut world = World::new(1, true, [(0, 0)]);
        let object = world.heap.address(0);
        let mut register = |f, data, order| {
            let (old, old_data) = world.finalizers.register(object, f, data, order).unwrap();
            (old.map(|f| core::ptr::fn_addr_eq(f, finalizer as FinalizerFn)), old_data)
        };
        assert_eq!(register(None, 5, Order::Normal), (None, 0));
        assert_eq!(register(Some(finalizer), 6, Order::Normal), (None, 0));
        assert_eq!(register(Some(other_finalizer), 7, Order::Normal), (Some(true), 6));
        assert_eq!(register(None, 8, Order::Normal), (Some(false), 7));
        assert_eq!(register(None, 9, Order::Normal), (None, 0));
        assert_eq!(register(Some(finalizer), 1, Order::Normal), (None, 0));
        assert_eq!(register(Some(finalizer), 2, Order::NoOrder), (Some(true), 1));
        // The order was replaced, too: the object refers to itself.
        assert_eq!(world.collect(&[]), [0]);
        // An object in the queue may be registered again, and is finalized again.
        world.register(&[0], Order::IgnoreSelf);
        assert_eq!(world.take_all(), [0]);
        assert_eq!(world.collect(&[]), [0]);
        assert_eq!(world.take_all(), [0]);
        assert_eq!(world.collect(&[]), []);
    }

    #[test]
    fn all_can_be_queued_even_what_is_reachable_or_on_a_cycle() {
        let mut world = World::new(4, true, [(0, 1), (1, 0)]);
        (0..4).for_each(|object| world.register(&[object], ORDERS[object]));
        assert_eq!(refusal::during(|| world.finalizers.queue_all()), 4);
        assert_eq!((world.finalizers.len(), world.finalizers.ready()), (0, 4));
        assert_eq!(world.finalizers.queue_all(), 0);
        assert_eq!(world.collect(&[]), []);
        assert_eq!(world.take_all(), [0, 1, 2, 3]);
    }

    #[test]
    fn a_refused_registration_changes_nothing() {
        let mut finalizers = Finalizers::new();
        let mut register = |object| finalizers.register(object, Some(finalizer), object + 1, Order::Normal);
        assert_eq!(refusal::during(|| register(16)), Err(NoMemory));
        let mut registered = 0;
        assert_eq!(register(16), Ok((None, 0)));
        while refusal::during(|| register(16 * (registered + 2))).is_ok() {
            registered += 1;
        }
        assert!(registered > 50);
        // A replacement and a removal need no memory.
        assert_eq!(refusal::during(|| register(32)).unwrap().1, 33);
        assert_eq!(refusal::during(|| finalizers.register(32, None, 0, Order::Normal)).unwrap().1, 33);
        assert_eq!(finalizers.len(), registered);
    }

    /// What `process` should queue, from its definition: candidates are what the roots do not reach; no candidate that
    /// a candidate reaches by its order is queued; and under Java finalization no unreachable-ordered one that a queued
    /// unordered one reaches.
    fn expected(heap: &Heap, orders: &HashMap<usize, Order>, java: bool) -> Vec<usize> {
        let closure = |from: usize, ignore_self: bool| {
            let mut seen = HashSet::new();
            let mut rest = heap.children(from);
            rest.retain(|&child| !(ignore_self && child == from));
            while let Some(object) = rest.pop() {
                if seen.insert(object) {
                    rest.extend(heap.children(object));
                }
            }
            seen
        };
        let reached = |from: &[usize], order: Order| -> HashSet<usize> {
            let from = from.iter().filter(|object| orders[object] == order);
            from.flat_map(|&object| closure(object, order == Order::IgnoreSelf)).collect()
        };
        let mut queued: Vec<usize> = orders.keys().copied().filter(|&object| !heap.is_live(object)).collect();
        let waiting: HashSet<usize> = [Order::Normal, Order::IgnoreSelf, Order::Unreachable]
            .into_iter()
            .flat_map(|order| reached(&queued, order))
            .collect();
        queued.retain(|object| !waiting.contains(object));
        if java {
            let unordered = reached(&queued, Order::NoOrder);
            queued.retain(|object| orders[object] != Order::Unreachable || !unordered.contains(object));
        }
        queued.sort_unstable();
        queued
    }

    #[test]
    fn random_graphs_agree_with_the_definition() {
        let mut random = Random(0x0fed_cba9_8765_4321);
        let mut queued = 0;
        for round in 0..4000 {
            let objects = 2 + random.below(14);
            let mut world = World::new(objects, round % 2 == 0, []);
            for _ in 0..random.below(objects * 2) {
                world.heap.point(random.below(objects), random.below(WORDS), random.below(objects));
            }
            let mut orders = HashMap::new();
            for _ in 0..random.below(objects * 2) {
                let (object, order) = (random.below(objects), ORDERS[random.below(4)]);
                orders.insert(object, order);
                world.finalizers.register(world.heap.address(object), Some(finalizer), 0, order).unwrap();
            }
            for _ in 0..4 {
                let roots: Vec<usize> = (0..random.below(3)).map(|_| random.below(objects)).collect();
                world.mark(&roots);
                let expected = expected(&world.heap, &orders, world.java);
                assert_eq!(world.process(), expected);
                queued += expected.len();
                orders.retain(|object, _| !expected.contains(object));
                for _ in 0..random.below(3) {
                    world.take();
                }
            }
            assert_eq!(world.finalizers.len(), orders.len());
        }
        assert!(queued > 10_000, "only {queued} objects were queued");
    }

    /// Registers, replaces, removes, collects and takes at random, up to tens of thousands of entries and back.
    #[test]
    fn random_operations_agree_with_a_map_and_a_queue() {
        let (objects, mut random) = (60_000, Random(0x1357_9bdf_0246_8ace));
        let mut world = World::new(objects, true, []);
        let mut registered = HashMap::new();
        let mut ready: VecDeque<(usize, usize)> = VecDeque::new();
        for step in 0..400_000 {
            // The population grows for a quarter of the run, then shrinks, and again.
            let growing = step / 100_000 % 2 == 0;
            let object = random.below(objects);
            let address = world.heap.address(object);
            match random.below(100_000) {
                0..30_000 => {
                    let old = world.finalizers.register(address, None, 0, Order::Normal).unwrap();
                    assert_eq!(old.1, registered.remove(&object).unwrap_or(0));
                }
                30_000..90_000 if growing => {
                    let old = world.finalizers.register(address, Some(finalizer), step + 1, Order::Normal).unwrap();
                    assert_eq!(old.1, registered.insert(object, step + 1).unwrap_or(0));
                }
                30_000..99_990 => {
                    let expected = ready.pop_front();
                    let taken = world.finalizers.take_ready();
                    assert_eq!(taken.map(|(_, o, data)| (world.heap.object(o).unwrap(), data)), expected);
                }
                _ => {
                    let roots: Vec<usize> = (0..objects).filter(|_| random.below(8) > 0).collect();
                    world.mark(&roots);
                    let dead = registered.keys().filter(|&&object| !world.heap.is_live(object)).count();
                    let before = ready.len();
                    world.process();
                    world.finalizers.newest(dead, |object| {
                        let object = world.heap.object(object).unwrap();
                        ready.push_back((object, registered.remove(&object).unwrap()));
                    });
                    assert_eq!(ready.len() - before, dead);
                }
            }
            assert_eq!((world.finalizers.len(), world.finalizers.ready()), (registered.len(), ready.len()));
        }
    }

    #[test]
    fn a_hundred_thousand_finalizers_leave_little_behind() {
        let count = 100_000;
        let mut world = World::new(count + 2, false, []);
        (0..count).for_each(|object| world.register(&[object], ORDERS[object % 4]));
        let odd: Vec<usize> = (0..count).filter(|object| object % 2 == 1).collect();
        assert_eq!(world.collect(&odd).len(), count / 2);
        assert_eq!(world.collect(&[]).len(), count / 2);
        assert_eq!(world.finalizers.entries.len(), 1 << 17);
        let taken = world.take_all();
        assert_eq!(taken.len(), count);
        assert!(taken[..count / 2].iter().all(|object| object % 2 == 0), "the first collection's objects come first");
        world.register(&[count], Order::Normal);
        // There may be as many again, but what is free is not walked over.
        assert_eq!((world.finalizers.entries.len(), world.finalizers.used), (1 << 17, 1));
        (0..4).for_each(|_| assert_eq!(world.collect(&[count]), []));
        world.register(&[count + 1], Order::Normal);
        assert_eq!((world.finalizers.entries.len(), world.finalizers.used), (128, 2));
        assert_eq!(world.collect(&[]), [count, count + 1]);
    }
}
