//! Why an object is alive: the shortest path to it from a root.
//!
//! libgc can be built to note in each debug object where the marker found it. Here nothing is noted: the question stops
//! the world and searches from the roots, breadth first, until it comes upon the object. So the answer is of this moment,
//! it holds for every object, and a program that does not ask pays nothing.

use core::hint::black_box;
use core::ptr::with_exposed_provenance;

use larder_blocks::State;
use larder_sys::memory::{map_lazy, unmap};
use larder_sys::thread::with_spilled_registers;
use larder_sys::vector::Vector;
use larder_threads::ThreadState;
use larder_trace::descriptor::{BITMAP, LENGTH, PER_OBJECT, TAG, resolve};
use larder_units::Bytes;

use crate::heap::HEAP;
use crate::{cycle, finalization, kind, object, roots, stacks, threads};

/// What refers to an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Referrer {
    /// The word at this address, in static data, a registered range, thread-local storage or on a stack.
    Root(usize),
    /// A root without an address: a thread's argument or result, or the object is uncollectable.
    Nameless,
    /// A finalizer that waits to run, or its data.
    Finalizer,
    /// A word of a heap object: its base, and how far into it the word lies.
    Object(usize, usize),
}

/// An address in a form that the search does not take for one: in the frames and registers of who asks it would be a root of its own.
#[derive(Clone, Copy, Debug)]
pub struct Hidden(usize);

impl Hidden {
    /// The caller has no use for the address itself any more.
    #[inline(always)]
    pub fn of(address: usize) -> Self {
        // What the compiler does not look through, it does not compute later.
        Self(black_box(!address))
    }

    /// The address. Not in a frame above the search.
    pub fn address(self) -> usize {
        !self.0
    }
}

/// An object that the search has come to.
#[derive(Clone, Copy)]
struct Step {
    object: usize,
    /// The number of the step that led here, for `Referrer::Object`.
    from: usize,
    by: Referrer,
}

struct Search<'a> {
    steps: Vector<Step>,
    /// A bit for each granule of the range that was used when the world stopped: an object that begins there was come to.
    seen: &'a mut [u8],
    low: usize,
    target: usize,
    found: Option<usize>,
}

impl Search<'_> {
    fn come_to(&mut self, word: usize, from: usize, by: Referrer) {
        let Some(base) = object::base(word) else { return };
        let granule = (base - self.low) / 16;
        // None where an unregistered thread, which nobody stops, has made the heap larger since.
        let Some(byte) = self.seen.get_mut(granule / 8) else { return };
        if self.found.is_some() || *byte >> (granule % 8) & 1 != 0 {
            return;
        }
        *byte |= 1 << (granule % 8);
        if self.steps.push(Step { object: base, from, by }).is_ok() && base == self.target {
            self.found = Some(self.steps.as_slice().len() - 1);
        }
    }

    fn range(&mut self, low: usize, high: usize) {
        for at in (low.next_multiple_of(8)..high & !7).step_by(8) {
            // SAFETY: a root range, in the stopped world.
            self.come_to(unsafe { with_exposed_provenance::<usize>(at).read() }, 0, Referrer::Root(at));
        }
    }

    /// Comes to what an object refers to, by its descriptor; what only a client's procedure knows is taken conservatively.
    fn scan(&mut self, number: usize) {
        let base = self.steps.as_slice()[number].object;
        let (size, kind) = (object::size(base), object::kind_of(base));
        let mut descriptor = kind::descriptor(kind, size);
        if descriptor & TAG == PER_OBJECT {
            // SAFETY: an allocated object of that kind.
            descriptor = unsafe { resolve(core::ptr::with_exposed_provenance_mut(base), descriptor) };
        }
        let length = if descriptor & TAG == LENGTH { descriptor.min(size) } else { size };
        for (i, at) in (base..base + (length & !7)).step_by(8).enumerate() {
            let wanted = descriptor & TAG != BITMAP || (i < 62 && descriptor << i >> 63 != 0);
            if wanted {
                // SAFETY: a word of an allocated object, in the stopped world.
                let word = unsafe { with_exposed_provenance::<usize>(at).read() };
                self.come_to(word, number, Referrer::Object(base, at - base));
            }
        }
    }

    fn roots(&mut self, own_sp: usize) {
        // What a cycle searches, and no more: the lock is held, and the loader's list, see `find_from`.
        roots::for_each_range_of_cycle(|low, high| self.range(low, high));
        finalization::push_roots(|word| self.come_to(word, 0, Referrer::Finalizer));
        let own = larder_threads::REGISTRY.current().map_or(core::ptr::null(), core::ptr::from_ref);
        cycle::for_each_thread(|t| {
            if matches!(t.state(), ThreadState::Running | ThreadState::Blocked) {
                let sp = if core::ptr::eq(t, own) { own_sp } else { t.stack_pointer() };
                if let Some((low, high)) = stacks::live_from(t, sp) {
                    self.range(low, high);
                }
                t.alternate_stacks().into_iter().flatten().for_each(|(low, high)| self.range(low, high));
            }
            t.roots().into_iter().for_each(|word| self.come_to(word, 0, Referrer::Nameless));
        });
        threads::for_each_argument(|word| self.come_to(word, 0, Referrer::Nameless));
        roots::for_each_thread_local(|low, high| self.range(low, high));
        for index in 0..HEAP.space.frontier().0 {
            // SAFETY: below the frontier.
            let block = unsafe { HEAP.space.block(index) };
            if !matches!(block.state(), State::Small | State::Large) || !kind::uncollectable(block.kind.get() as usize)
            {
                continue;
            }
            for cell in 0..block.cells.get() as usize {
                let at = HEAP.space.address_of(index) + cell * block.cell.get() as usize;
                self.come_to(at, 0, Referrer::Nameless);
            }
        }
    }
}

/// Calls `f` with what refers to the object that contains an address, then with what refers to that, and so on up to a
/// root. False where nothing leads to it, and where there is no memory to search.
///
/// The calling thread's stack counts from the caller's frame up. The caller holds no lock of the library.
pub fn find(address: Hidden, f: &mut dyn FnMut(Referrer)) -> bool {
    let mut question = Question { address, f, found: false };
    with_spilled_registers(find_below, (&raw mut question).cast());
    question.found
}

struct Question<'a> {
    address: Hidden,
    f: &'a mut dyn FnMut(Referrer),
    found: bool,
}

/// What counts of this thread's stack lies at `sp` and above: not the frames of the search, which know what they look for.
extern "C" fn find_below(sp: *mut u8, question: *mut u8) {
    // SAFETY: `find` passes its own local.
    let question = unsafe { &mut *question.cast::<Question<'_>>() };
    question.found = find_from(question.address.address(), sp.addr(), question.f);
}

/// As [`find`]; `own_sp` is the lowest address of the calling thread's stack that counts.
fn find_from(address: usize, own_sp: usize, f: &mut dyn FnMut(Referrer)) -> bool {
    let Some(target) = object::base(address) else { return false };
    let (mut steps, mut found) = (Vector::new(), None);
    threads::with_stopped_world(|| {
        // Not before: the heap grows until its threads stand still.
        let (low, high) = crate::stats::used_range();
        let map = Bytes((high - low) / 128 + 1).to_pages_rounded_up().to_bytes();
        let Ok(seen) = map_lazy(map) else { return };
        // SAFETY: the mapping, which is ours and all zero.
        let bits = unsafe { core::slice::from_raw_parts_mut(seen.as_ptr(), map.0) };
        let mut search = Search { steps: core::mem::take(&mut steps), seen: bits, low, target, found: None };
        search.roots(own_sp);
        let mut number = 0;
        while search.found.is_none() && number < search.steps.as_slice().len() {
            search.scan(number);
            number += 1;
        }
        (steps, found) = (search.steps, search.found);
        // SAFETY: the whole mapping, which nobody uses any more.
        unsafe { unmap(seen.as_ptr(), map) };
    });
    let all = steps.as_slice();
    let mut at = found;
    while let Some(number) = at {
        let step = all[number];
        f(step.by);
        at = matches!(step.by, Referrer::Object(..)).then_some(step.from);
    }
    steps.clear();
    found.is_some()
}
