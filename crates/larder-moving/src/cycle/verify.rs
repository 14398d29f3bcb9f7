//! The verifier: looks at all of the heap after a collection, by other means than the collection's.
//!
//! Before and after, the graph of objects is walked from the roots in one fixed order; objects are numbered as they are
//! first met, and sizes, contents and numbers of referents go into a hash. Equal hashes mean that no object was lost,
//! duplicated or changed. After, every reference must lead to the beginning of an object in memory that is in use, and
//! every slot of an old object that refers to a young one must be remembered.

use core::ops::Range;
use core::sync::atomic::{AtomicU32, Ordering};

use larder_sys::memory::ReserveError;

use super::Cycle;
use super::roots::size_of_object;
use crate::config::Barrier;
use crate::heap::Heap;
use crate::host::{Host, Visitor};
use crate::list::{List, Table};
use crate::space::{GRANULE, Space};
use crate::young::{FREE, make_hole, unmake_hole};

/// What the verifier needs of memory.
pub(crate) struct Verifier {
    /// The number of the object that begins at a granule; 0 for none yet.
    numbers: Table<AtomicU32>,
    /// Granules whose numbers are not 0.
    numbered: List<usize>,
    /// Objects that were met and not looked at.
    pending: List<usize>,
    /// Slots of the object that is looked at, with what they hold.
    slots: List<usize>,
}

/// What the graph was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Digest {
    hash: u64,
    objects: usize,
    bytes: usize,
}

impl Verifier {
    pub fn new(space: &Space) -> Result<Self, ReserveError> {
        let granules = (space.young.end - space.old.start) / GRANULE;
        Ok(Self {
            numbers: Table::zeroed(granules)?,
            numbered: List::with_capacity(granules)?,
            pending: List::with_capacity(granules)?,
            slots: List::with_capacity(granules * 2)?,
        })
    }
}

/// One walk.
struct Walk<'a, H: Host> {
    heap: &'a Heap<H>,
    verifier: &'a mut Verifier,
    digest: Digest,
}

impl<H: Host> Visitor for Walk<'_, H> {
    fn slot(&mut self, slot: *mut usize) {
        self.verifier.slots.push(slot.addr());
    }

    /// Not followed: what it refers to may die.
    fn weak(&mut self, slot: *mut usize) {
        self.verifier.slots.push(slot.addr() | WEAK);
    }

    fn ephemeron(&mut self, key: *mut usize, value: *mut usize) {
        self.verifier.slots.push(key.addr() | WEAK);
        self.verifier.slots.push(value.addr() | WEAK);
    }
}

/// Set in the address of a slot that keeps nothing.
const WEAK: usize = 1;

impl<H: Host> Walk<'_, H> {
    fn mix(&mut self, word: u64) {
        // A multiplicative hash: quick, and every bit counts.
        self.digest.hash = (self.digest.hash.rotate_left(5) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    /// Hashes the number of a referent, which it may get now.
    fn meet(&mut self, at: usize, from: usize) {
        let space = &self.heap.space;
        let granule = (at - space.old.start) / GRANULE;
        let mut number = self.verifier.numbers[granule].load(Ordering::Relaxed);
        if number == 0 {
            self.heap.check_place(at, from);
            self.digest.objects += 1;
            number = self.digest.objects as u32;
            self.verifier.numbers[granule].store(number, Ordering::Relaxed);
            self.verifier.numbered.push(granule);
            self.verifier.pending.push(at);
        }
        self.mix(u64::from(number));
    }

    fn look_at(&mut self, object: usize) {
        let heap = self.heap;
        let size = size_of_object(heap, object);
        self.digest.bytes += size;
        self.mix(size as u64);
        self.verifier.slots.truncate(0);
        // SAFETY: `check_place` found an object here.
        unsafe { heap.host.scan(heap.space.pointer(object), self) };
        self.verifier.slots.as_mut_slice().sort_unstable();
        let mut next = 0;
        for at in (object..object + size).step_by(8) {
            let value = heap.space.word(at).load(Ordering::Relaxed);
            let slot = self.verifier.slots.as_slice().get(next).copied().unwrap_or(0);
            if slot & !WEAK != at {
                self.mix(value as u64);
                continue;
            }
            next += 1;
            let referent = value & !H::TAG_MASK;
            if slot & WEAK != 0 {
                continue;
            }
            if heap.space.contains(referent) {
                self.mix((value & H::TAG_MASK) as u64);
                self.meet(referent, at);
            } else {
                self.mix(value as u64);
            }
        }
        if next != self.verifier.slots.len() {
            larder_sys::die!(
                "the host's scan of {object:#x} shows slots outside of the object ({size} bytes), or one twice"
            );
        }
    }
}

impl<H: Host> Cycle<'_, H> {
    /// The graph as it is. The world is stopped, buffers are retired.
    pub(super) fn digest(&mut self) -> Digest {
        let heap = self.heap;
        let Some(mut verifier) = self.own.verifier.take() else { return Digest { hash: 0, objects: 0, bytes: 0 } };
        let mut walk = Walk { heap, verifier: &mut verifier, digest: Digest { hash: 1, objects: 0, bytes: 0 } };
        // Without dead objects that are watched: a collection adds to them.
        self.each_root(|root| {
            let at = root.load(Ordering::Relaxed) & !H::TAG_MASK;
            if heap.space.contains(at) {
                walk.meet(at, root.as_ptr().addr());
            }
        });
        while let Some(object) = walk.verifier.pending.pop() {
            walk.look_at(object);
        }
        let digest = walk.digest;
        for &granule in verifier.numbered.as_slice() {
            verifier.numbers[granule].store(0, Ordering::Relaxed);
        }
        verifier.numbered.clear();
        self.own.verifier = Some(verifier);
        digest
    }

    /// Stops the process if the heap is not what it was, or not in order. `provided` is what the collection has provided: it is no
    /// object yet, and the host is not asked about it.
    pub(super) fn verify(&mut self, before: Digest, provided: Option<Range<usize>>) {
        let after = self.digest();
        if before != after {
            larder_sys::die!(
                "a collection has changed the heap: {} objects of {} bytes before, {} of {} after, hashes {:x} and {:x}",
                before.objects,
                before.bytes,
                after.objects,
                after.bytes,
                before.hash,
                after.hash
            );
        }
        let provided = provided.unwrap_or(0..0);
        let space = &self.heap.space;
        let young = space.is_young(provided.start);
        if young {
            make_hole(space, provided.clone());
        }
        self.verify_remembered(provided.start);
        if young {
            unmake_hole(space, provided.start);
            space.word(provided.start).store(0, Ordering::Relaxed);
        }
    }

    /// Every slot of an old object that refers to a young one is remembered; every old object's references lead somewhere,
    /// dead ones' too. What begins at `provided` is no object.
    fn verify_remembered(&mut self, provided: usize) {
        let heap = self.heap;
        if heap.config.barrier == Barrier::StoreBuffer {
            // SAFETY: the world is stopped.
            let remembered = unsafe { &mut *heap.remembered.get() };
            remembered.as_mut_slice().sort_unstable();
            for &slot in remembered.as_slice() {
                let at = heap.space.word(slot).load(Ordering::Relaxed) & !H::TAG_MASK;
                if !heap.space.is_young(at) {
                    larder_sys::die!("slot {slot:#x} is remembered and refers to {at:#x}, which is not young");
                }
            }
        }
        for object in heap.space.starts_in(heap.old.extent()) {
            self.verify_object(object);
        }
        // An old one that was provided has no start yet.
        for object in heap.large.objects().filter(|object| object.start != provided) {
            self.verify_object(object.start);
        }
        for span in heap.young.spans(crate::young::FROM) {
            self.walk(heap.young.extent(span), |object, _| {
                // SAFETY: an object of this heap.
                unsafe { heap.host.scan(heap.space.pointer(object), &mut Check { heap, object }) };
            });
        }
    }

    fn verify_object(&self, object: usize) {
        let heap = self.heap;
        // SAFETY: an object of this heap.
        unsafe { heap.host.scan(heap.space.pointer(object), &mut Check { heap, object }) };
    }
}

/// Checks the slots of one object.
struct Check<'a, H: Host> {
    heap: &'a Heap<H>,
    object: usize,
}

impl<H: Host> Visitor for Check<'_, H> {
    fn slot(&mut self, slot: *mut usize) {
        let heap = self.heap;
        let slot = slot.addr();
        let at = heap.space.word(slot).load(Ordering::Relaxed) & !H::TAG_MASK;
        if !heap.space.contains(at) {
            return;
        }
        heap.check_place(at, slot);
        if heap.space.is_young(at) && !heap.space.is_young(slot) {
            // SAFETY: the world is stopped.
            let listed = || unsafe { &*heap.remembered.get() }.as_slice().binary_search(&slot).is_ok();
            let noted = heap.space.is_dirty(slot) || heap.config.barrier == Barrier::StoreBuffer && listed();
            if !noted {
                larder_sys::die!(
                    "slot {slot:#x} of object {:#x} refers to the young {at:#x} and is not remembered: a store without a barrier?",
                    self.object
                );
            }
        }
    }

    fn weak(&mut self, slot: *mut usize) {
        self.slot(slot);
    }

    fn ephemeron(&mut self, key: *mut usize, value: *mut usize) {
        self.slot(key);
        self.slot(value);
    }
}

impl<H: Host> Heap<H> {
    /// Stops the process if no object can begin at `at`, to which `from` refers.
    fn check_place(&self, at: usize, from: usize) {
        let space = &self.space;
        let wrong = if !at.is_multiple_of(GRANULE) {
            "is not aligned"
        } else if space.is_large(at) {
            if self.large.find_object(at).is_some_and(|object| object.start == at) {
                return;
            }
            "is not the beginning of a large object"
        } else if space.is_old(at) {
            if self.old.extent().contains(&at) && space.is_start(at) {
                return;
            }
            "is not the beginning of an old object"
        } else {
            let block = self.young.block_of(at);
            let in_use = self.young.state(block) != FREE && self.young.extent(self.young.span_of(block)).contains(&at);
            if in_use {
                return;
            }
            "is in young memory that is not in use"
        };
        larder_sys::die!("the reference at {from:#x} leads to {at:#x}, which {wrong}");
    }
}
