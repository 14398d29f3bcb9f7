//! Toggle references: references from outside of the heap that are strong or weak, as the client says before each
//! collection (libgc's name; Mono's bridge to Objective-C was the first user).
//!
//! A collection goes through the table three times: before the stop it asks the client about each object; strong
//! objects are roots; and what is still weak and not marked after finalizers were queued is forgotten, since it is
//! about to be freed. The table lies outside the heap and is no root by itself. All of this runs under the allocation
//! lock, and only a registration asks the kernel for memory.

use crate::links::Reachability;
use crate::table::{Array, NoMemory, Zeroed, fitting_capacity};

/// What the client says about one object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// Forget it; what becomes of it is the heap's matter.
    Drop,
    /// Keep it.
    Strong,
    /// Let it go if nothing else refers to it.
    Weak,
}

/// One reference. An object has granule alignment, so the lowest bit is free to say whether it is strong.
#[derive(Clone, Copy)]
struct Reference(usize);

// SAFETY: zero is an address with a bit.
unsafe impl Zeroed for Reference {}

impl Reference {
    const STRONG: usize = 1;

    const fn new(object: usize, strong: bool) -> Self {
        Self(object | if strong { Self::STRONG } else { 0 })
    }

    const fn object(self) -> usize {
        self.0 & !Self::STRONG
    }

    const fn is_strong(self) -> bool {
        self.0 & Self::STRONG != 0
    }
}

/// The registered references, in the order of their registration.
pub struct ToggleRefs {
    references: Array<Reference>,
    used: usize,
}

impl ToggleRefs {
    /// An empty table, which has no memory yet.
    pub const fn new() -> Self {
        Self { references: Array::EMPTY, used: 0 }
    }

    /// Registers the object that starts at `object`. An object may be registered more than once.
    pub fn add(&mut self, object: usize, strong: bool) -> Result<(), NoMemory> {
        let capacity = fitting_capacity(self.references.len(), self.used + 1, 0);
        if capacity != self.references.len() {
            let mut larger = Array::map(capacity)?;
            larger[..self.used].copy_from_slice(&self.references[..self.used]);
            self.references = larger;
        }
        self.references[self.used] = Reference::new(object, strong);
        self.used += 1;
        Ok(())
    }

    /// Asks `f` about each object and does what it says. Before the stop.
    pub fn decide(&mut self, mut f: impl FnMut(usize) -> Status) {
        self.retain(|reference| {
            let strong = match f(reference.object()) {
                Status::Drop => return false,
                Status::Strong => true,
                Status::Weak => false,
            };
            *reference = Reference::new(reference.object(), strong);
            true
        });
    }

    /// Gives `f` each object that is kept: a root.
    pub fn push_roots(&self, f: impl FnMut(usize)) {
        let strong = self.references[..self.used].iter().filter(|reference| reference.is_strong());
        strong.map(|reference| reference.object()).for_each(f);
    }

    /// Forgets the objects that are not marked. After the last marking of a collection.
    pub fn clear_dead(&mut self, marks: &impl Reachability) {
        self.retain(|reference| marks.is_marked(reference.object()));
    }

    /// How many references there are.
    pub const fn len(&self) -> usize {
        self.used
    }

    /// Whether there are none.
    pub const fn is_empty(&self) -> bool {
        self.used == 0
    }

    fn retain(&mut self, mut keep: impl FnMut(&mut Reference) -> bool) {
        let mut kept = 0;
        for at in 0..self.used {
            let mut reference = self.references[at];
            if keep(&mut reference) {
                self.references[kept] = reference;
                kept += 1;
            }
        }
        self.used = kept;
    }
}

impl Default for ToggleRefs {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::links::model_heap::Heap;
    use crate::table::refusal;

    fn objects(refs: &ToggleRefs, heap: &Heap) -> Vec<(usize, bool)> {
        refs.references[..refs.used].iter().map(|r| (heap.object(r.object()).unwrap(), r.is_strong())).collect()
    }

    #[test]
    fn strong_objects_are_roots_and_weak_ones_go_when_nothing_else_refers_to_them() {
        let (mut heap, mut refs) = (Heap::new(4), ToggleRefs::new());
        for (object, strong) in [(0, true), (1, false), (2, false)] {
            refs.add(heap.address(object), strong).unwrap();
        }
        let mut roots = vec![heap.address(2)];
        refs.push_roots(|object| roots.push(object));
        assert_eq!(roots, [heap.address(2), heap.address(0)]);
        heap.mark(roots);
        refs.clear_dead(&heap);
        assert_eq!(objects(&refs, &heap), [(0, true), (2, false)]);
    }

    #[test]
    fn the_client_decides_about_each_object() {
        let (heap, mut refs) = (Heap::new(3), ToggleRefs::new());
        for object in 0..3 {
            refs.add(heap.address(object), object == 0).unwrap();
        }
        let mut asked = Vec::new();
        refs.decide(|object| {
            asked.push(heap.object(object).unwrap());
            [Status::Weak, Status::Drop, Status::Strong][asked.len() - 1]
        });
        assert_eq!(asked, [0, 1, 2]);
        assert_eq!(objects(&refs, &heap), [(0, false), (2, true)]);
    }

    #[test]
    fn a_registration_without_memory_changes_nothing() {
        let (heap, mut refs) = (Heap::new(200), ToggleRefs::new());
        for object in 0..128 {
            refs.add(heap.address(object), true).unwrap();
        }
        assert_eq!(refusal::during(|| refs.add(heap.address(128), true)), Err(NoMemory));
        assert_eq!(refs.len(), 128);
        refs.add(heap.address(128), false).unwrap();
        assert_eq!(objects(&refs, &heap)[127..], [(127, true), (128, false)]);
    }
}
