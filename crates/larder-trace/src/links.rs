//! Weak links: words that are cleared when the object they stand for dies.
//!
//! A link is the address of a word, registered together with an object. The word usually holds the object's address in
//! disguise, so that it does not keep the object. The collection that finds the object dead stores zero in the word and
//! forgets the link. The behaviour is that of libgc's disappearing links (Boehm, Demers and others; `gc.h`).
//!
//! The runtime has two of these tables. In the one for short links, links are cleared before finalizers are looked at:
//! a short link is gone before anything can revive its object, and clearing it may break a cycle of finalizable
//! objects. In the one for long links they are cleared after finalizers have marked what they need: a long link
//! lives until its object cannot come back. One collection does, in this order, after marking:
//!
//! 1. `short.clear_dead`,
//! 2. [`Finalizers::process`](crate::finalize::Finalizers::process),
//! 3. `short.remove_dangling`, because what is still unmarked now is freed, and the links in it with it,
//! 4. `long.clear_dead`, `long.remove_dangling`.
//!
//! The tables lie outside the heap and are not roots, so neither a link's address nor its object's is a reference.
//! All of this runs under the allocation lock, and a collection asks the kernel for no memory.

use core::ptr::with_exposed_provenance_mut;

pub use crate::table::NoMemory;
use crate::table::Table;

/// What the tables ask of the marker, in a stopped world or under the lock.
pub trait Reachability {
    /// Whether the object that starts at `object` was found live. An address outside the heap counts as marked.
    fn is_marked(&self, object: usize) -> bool;

    /// Keeps the object itself, not what it refers to.
    fn set_mark(&mut self, object: usize);

    /// Marks everything that can be reached from the content of `object`, to the end. It does so when `object` itself
    /// is marked already, too, and it marks `object` itself only when that is reached. With `ignore_self`, words of
    /// the object that point into it do not count; what reaches it on a way through other objects does.
    fn mark_from(&mut self, object: usize, ignore_self: bool);

    /// The start of the heap object that contains `address`.
    fn base(&self, address: usize) -> Option<usize>;
}

/// Whether a registration made a new entry. The numbers are libgc's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Registered {
    /// The link was not registered before.
    New = 0,
    /// The link was registered, and stands for the new object now.
    Duplicate = 1,
}

/// What came of moving a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moved {
    /// The link is at its new address, or it was asked to stay where it is.
    Done,
    /// Another link is at the new address; nothing has changed.
    Duplicate,
    /// No link is at the old address.
    NotFound,
}

/// A table of weak links.
pub struct Links {
    /// From the address of each link to the address of its object.
    objects: Table<usize>,
}

impl Links {
    /// An empty table, which has no memory yet.
    pub const fn new() -> Self {
        Self { objects: Table::new() }
    }

    /// Has the word at `link` cleared when `object` dies. `link` is not null, aligned to a word, and must stay writable
    /// until it is cleared or unregistered, or the heap object that contains it dies.
    ///
    /// A link that was registered before stands for `object` from now on; that needs no memory.
    pub fn register(&mut self, link: usize, object: usize) -> Result<Registered, NoMemory> {
        debug_assert!(link.is_multiple_of(align_of::<usize>()));
        if let Some(present) = self.objects.get_mut(link) {
            *present = object;
            return Ok(Registered::Duplicate);
        }
        self.objects.reserve()?;
        self.objects.insert(link, object);
        Ok(Registered::New)
    }

    /// Forgets a link, and says whether there was one. Its word stays as it is.
    pub fn unregister(&mut self, link: usize) -> bool {
        self.objects.remove(link).is_some()
    }

    /// Makes the link at `from` a link at `to`, for the same object. Neither word is read or written.
    pub fn move_link(&mut self, from: usize, to: usize) -> Moved {
        let Some(object) = self.objects.get(from) else { return Moved::NotFound };
        if from == to {
            return Moved::Done;
        }
        if self.objects.get(to).is_some() {
            return Moved::Duplicate;
        }
        // The removal makes the room, so this cannot fail.
        self.objects.remove(from);
        self.objects.insert(to, object);
        Moved::Done
    }

    /// Stores zero in every link whose object is not marked, forgets those links, and returns how many there were.
    ///
    /// # Safety
    /// The world is stopped, and every registered link is the address of a writable word.
    pub unsafe fn clear_dead(&mut self, marks: &impl Reachability) -> usize {
        self.objects.retain(|link, object| {
            let live = marks.is_marked(object);
            if !live {
                // SAFETY: the caller says that the word is writable and that nobody else looks at it now.
                unsafe { with_exposed_provenance_mut::<usize>(link).write(0) };
            }
            live
        })
    }

    /// Forgets every link that lies in an unmarked heap object, and returns how many there were.
    ///
    /// It comes after the last marking of a collection: the memory of such a link is about to be used for something
    /// else.
    pub fn remove_dangling(&mut self, marks: &impl Reachability) -> usize {
        self.objects.retain(|link, _| marks.base(link).is_none_or(|holder| marks.is_marked(holder)))
    }

    /// Gives `f` each link with its object.
    pub fn for_each(&self, mut f: impl FnMut(usize, usize)) {
        self.objects.iter().for_each(|(link, object)| f(link, object));
    }

    /// How many links are registered.
    pub const fn len(&self) -> usize {
        self.objects.len()
    }

    /// Whether no link is registered.
    pub const fn is_empty(&self) -> bool {
        self.objects.is_empty()
    }
}

impl Default for Links {
    fn default() -> Self {
        Self::new()
    }
}

/// A heap for tests: objects of [`WORDS`](model_heap::WORDS) real words each, and a marker that takes every word for a
/// possible pointer and recurses.
#[cfg(test)]
pub(crate) mod model_heap {
    use super::Reachability;
    use core::ptr::{with_exposed_provenance, with_exposed_provenance_mut};

    pub const WORDS: usize = 8;
    const SIZE: usize = WORDS * size_of::<usize>();

    pub struct Heap {
        start: usize,
        marked: Vec<bool>,
    }

    impl Heap {
        /// A heap of `objects` objects that hold only zeroes. Its memory is never freed.
        pub fn new(objects: usize) -> Self {
            let words = vec![0_usize; objects * WORDS].leak();
            Self { start: words.as_mut_ptr().expose_provenance(), marked: vec![false; objects] }
        }

        pub fn address(&self, object: usize) -> usize {
            assert!(object < self.marked.len());
            self.start + object * SIZE
        }

        /// The address of a word in an object.
        pub fn field(&self, object: usize, word: usize) -> usize {
            self.address(object) + word * size_of::<usize>()
        }

        pub fn read(&self, object: usize, word: usize) -> usize {
            // SAFETY: the word belongs to the leaked memory, to which no reference exists.
            unsafe { with_exposed_provenance::<usize>(self.field(object, word)).read() }
        }

        pub fn write(&self, object: usize, word: usize, value: usize) {
            // SAFETY: as in `read`.
            unsafe { with_exposed_provenance_mut::<usize>(self.field(object, word)).write(value) }
        }

        /// Lets a word of one object point to another.
        pub fn point(&self, from: usize, word: usize, to: usize) {
            self.write(from, word, self.address(to));
        }

        pub fn object(&self, address: usize) -> Option<usize> {
            address.checked_sub(self.start).map(|offset| offset / SIZE).filter(|&o| o < self.marked.len())
        }

        /// The objects to which the words of `object` point.
        pub fn children(&self, object: usize) -> Vec<usize> {
            (0..WORDS).filter_map(|word| self.object(self.read(object, word))).collect()
        }

        /// Begins a collection: all marks are cleared, then set from the root words.
        pub fn mark(&mut self, roots: impl IntoIterator<Item = usize>) {
            self.marked.fill(false);
            for root in roots {
                if let Some(object) = self.object(root) {
                    self.visit(object);
                }
            }
        }

        pub fn len(&self) -> usize {
            self.marked.len()
        }

        pub fn is_live(&self, object: usize) -> bool {
            self.marked[object]
        }

        fn visit(&mut self, object: usize) {
            if !core::mem::replace(&mut self.marked[object], true) {
                for child in self.children(object) {
                    self.visit(child);
                }
            }
        }
    }

    impl Reachability for Heap {
        fn is_marked(&self, object: usize) -> bool {
            self.object(object).is_none_or(|o| self.marked[o])
        }

        fn set_mark(&mut self, object: usize) {
            let object = self.object(object).unwrap();
            self.marked[object] = true;
        }

        fn mark_from(&mut self, object: usize, ignore_self: bool) {
            let object = self.object(object).unwrap();
            for child in self.children(object) {
                if !(ignore_self && child == object) {
                    self.visit(child);
                }
            }
        }

        fn base(&self, address: usize) -> Option<usize> {
            self.object(address).map(|object| self.address(object))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::model_heap::{Heap, WORDS};
    use super::*;
    use crate::table::{Random, refusal};
    use std::collections::HashMap;

    fn clear(links: &mut Links, heap: &Heap) -> usize {
        // SAFETY: the tests register only words of their heaps, and have one thread each.
        unsafe { links.clear_dead(heap) }
    }

    #[test]
    fn a_link_is_cleared_once_and_only_when_its_object_dies() {
        let (mut heap, mut links) = (Heap::new(3), Links::new());
        let disguised = !heap.address(1);
        heap.write(0, 2, disguised);
        assert_eq!(links.register(heap.field(0, 2), heap.address(1)), Ok(Registered::New));
        heap.mark([heap.address(0), heap.address(1)]);
        assert_eq!(clear(&mut links, &heap), 0);
        assert_eq!(heap.read(0, 2), disguised);
        heap.mark([heap.address(0)]);
        assert_eq!(clear(&mut links, &heap), 1);
        assert_eq!((heap.read(0, 2), links.len()), (0, 0));
        // What the program stores there afterwards is its own.
        heap.write(0, 2, disguised);
        assert_eq!(clear(&mut links, &heap), 0);
        assert_eq!(heap.read(0, 2), disguised);
    }

    #[test]
    fn the_last_registration_of_a_link_counts() {
        let (mut heap, mut links) = (Heap::new(3), Links::new());
        let link = heap.field(0, 0);
        heap.write(0, 0, 7);
        assert_eq!(links.register(link, heap.address(1)), Ok(Registered::New));
        assert_eq!(links.register(link, heap.address(2)), Ok(Registered::Duplicate));
        heap.mark([heap.address(0), heap.address(2)]);
        assert_eq!(clear(&mut links, &heap), 0);
        heap.mark([heap.address(0), heap.address(1)]);
        assert_eq!(clear(&mut links, &heap), 1);
        assert_eq!(heap.read(0, 0), 0);
    }

    #[test]
    fn an_unregistered_link_keeps_its_content() {
        let (mut heap, mut links) = (Heap::new(2), Links::new());
        heap.write(0, 0, 7);
        links.register(heap.field(0, 0), heap.address(1)).unwrap();
        assert!(links.unregister(heap.field(0, 0)));
        assert!(!links.unregister(heap.field(0, 0)));
        assert!(!links.unregister(0));
        heap.mark([heap.address(0)]);
        assert_eq!(clear(&mut links, &heap), 0);
        assert_eq!(heap.read(0, 0), 7);
    }

    #[test]
    fn a_moved_link_clears_its_new_word() {
        let (mut heap, mut links) = (Heap::new(3), Links::new());
        let [a, b, c] = [0, 1, 2].map(|word| heap.field(0, word));
        (0..3).for_each(|word| heap.write(0, word, 7));
        assert_eq!(links.move_link(a, b), Moved::NotFound);
        assert_eq!(links.move_link(a, a), Moved::NotFound);
        links.register(a, heap.address(1)).unwrap();
        links.register(c, heap.address(2)).unwrap();
        assert_eq!(links.move_link(a, a), Moved::Done);
        assert_eq!(links.move_link(a, c), Moved::Duplicate);
        assert_eq!(links.move_link(a, b), Moved::Done);
        assert_eq!(links.move_link(a, b), Moved::NotFound);
        assert_eq!(links.len(), 2);
        heap.mark([heap.address(0), heap.address(2)]);
        assert_eq!(clear(&mut links, &heap), 1);
        assert_eq!([0, 1, 2].map(|word| heap.read(0, word)), [7, 0, 7]);
    }

    #[test]
    fn a_link_in_a_dead_object_is_forgotten_and_one_outside_the_heap_is_not() {
        let (mut heap, elsewhere, mut links) = (Heap::new(3), Heap::new(1), Links::new());
        heap.write(1, 3, 7);
        links.register(heap.field(0, 0), heap.address(2)).unwrap();
        links.register(heap.field(1, 3), heap.address(2)).unwrap();
        links.register(elsewhere.field(0, 0), heap.address(2)).unwrap();
        heap.mark([heap.address(0), heap.address(2)]);
        assert_eq!(links.remove_dangling(&heap), 1);
        assert_eq!((links.len(), heap.read(1, 3)), (2, 7));
        heap.mark([]);
        assert_eq!(links.remove_dangling(&heap), 1);
        assert!(links.unregister(elsewhere.field(0, 0)));
    }

    #[test]
    fn only_a_new_link_needs_memory() {
        let (mut heap, mut links) = (Heap::new(200), Links::new());
        assert_eq!(refusal::during(|| links.register(heap.field(0, 0), heap.address(1))), Err(NoMemory));
        assert!(links.is_empty());
        for object in 0..200 {
            links.register(heap.field(object, 0), heap.address(object)).unwrap();
        }
        heap.mark([heap.address(7)]);
        refusal::during(|| {
            assert_eq!(links.register(heap.field(7, 0), heap.address(7)), Ok(Registered::Duplicate));
            assert_eq!(links.move_link(heap.field(7, 0), heap.field(7, 1)), Moved::Done);
            assert_eq!(links.remove_dangling(&heap), 199);
            assert_eq!(clear(&mut links, &heap), 0);
            assert!(links.unregister(heap.field(7, 1)));
        });
    }

    #[test]
    fn a_hundred_thousand_links_are_cleared_each_for_its_own_object() {
        let count = 100_000;
        let (mut heap, mut links) = (Heap::new(count), Links::new());
        for object in 0..count {
            heap.write(object, 1, 7);
            links.register(heap.field(object, 1), heap.address((object + 1) % count)).unwrap();
        }
        heap.mark((0..count).filter(|object| object % 3 == 0).map(|object| heap.address(object)).collect::<Vec<_>>());
        assert_eq!(clear(&mut links, &heap), count - count.div_ceil(3));
        assert!((0..count).all(|object| (heap.read(object, 1) == 7) == ((object + 1) % count % 3 == 0)));
    }

    #[test]
    fn random_operations_agree_with_a_hash_map() {
        let (objects, mut random) = (40, Random(0x0123_4567_89ab_cdef));
        let (mut heap, mut links) = (Heap::new(objects), Links::new());
        let mut model = HashMap::new();
        for _ in 0..100_000 {
            let link = heap.field(random.below(objects), random.below(WORDS));
            let other = heap.field(random.below(objects), random.below(WORDS));
            match random.below(100) {
                0..50 => {
                    let object = heap.address(random.below(objects));
                    let expected =
                        if model.insert(link, object).is_none() { Registered::New } else { Registered::Duplicate };
                    assert_eq!(links.register(link, object), Ok(expected));
                }
                50..70 => assert_eq!(links.unregister(link), model.remove(&link).is_some()),
                70..98 => {
                    let expected = match (model.get(&link).copied(), model.contains_key(&other)) {
                        (None, _) => Moved::NotFound,
                        (Some(_), true) if link != other => Moved::Duplicate,
                        (Some(object), _) => {
                            model.remove(&link);
                            model.insert(other, object);
                            Moved::Done
                        }
                    };
                    assert_eq!(links.move_link(link, other), expected);
                }
                _ => {
                    let roots: Vec<usize> = (0..objects - 3).map(|_| heap.address(random.below(objects))).collect();
                    heap.mark(roots);
                    let before = model.len();
                    model.retain(|_, object| heap.is_marked(*object));
                    assert_eq!(clear(&mut links, &heap), before - model.len());
                    let before = model.len();
                    model.retain(|link, _| heap.is_marked(heap.base(*link).unwrap()));
                    assert_eq!(links.remove_dangling(&heap), before - model.len());
                }
            }
            assert_eq!(links.len(), model.len());
        }
    }
}
