//! The record of one block: one cache line in the block table.
//!
//! | state | meaning of the record |
//! |---|---|
//! | `Untouched` | beyond the frontier of the space, or never used |
//! | `Free` | in a free run; the first and the last record of the run carry its length |
//! | `Small` | first (often only) block of a run that holds cells of one class and kind |
//! | `Large` | first block of a large object |
//! | `Owned` | first block of a free run in an owner's list |
//! | `Tail` | a later block of a `Small` or `Large` run; `head` names the first |
//!
//! Fields are atomics only so that a reader who holds a stale or made-up address (a conservative word, `GC_base` of
//! anything) reads some value rather than a data race; all of them are `Relaxed`. Who may write: a free record, the
//! holder of the pool's lock; a `Small` or `Large` one, whoever took the run from the pool, until it is published by
//! `state` (Release); later only the lists' fields and `swept`, under the lock of the class, and `frees_until_look` and
//! [`Block::note_free`], which lasts for ever.

use core::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicUsize, Ordering};

/// What a block is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum State {
    /// Never used since the space was reserved.
    Untouched = 0,
    /// In a free run.
    Free = 1,
    /// First block of a run of cells.
    Small = 2,
    /// First block of a large object.
    Large = 3,
    /// A later block of a run.
    Tail = 4,
    /// First block of a free run that belongs to an owner.
    Owned = 5,
}

/// No block: ends the lists.
pub const NONE: u32 = u32::MAX;

/// The bit of [`Block::was_freed_in`] beside the part.
const FREED: u8 = 1 << 7;

macro_rules! field {
    ($(#[$doc:meta])* $name:ident: $atomic:ty, $plain:ty) => {
        $(#[$doc])*
        #[repr(transparent)]
        pub struct $name($atomic);

        impl $name {
            const fn new() -> Self {
                Self(<$atomic>::new(0))
            }

            /// The value; `Relaxed`, see the module.
            #[inline(always)]
            pub fn get(&self) -> $plain {
                self.0.load(Ordering::Relaxed)
            }

            /// Replaces the value; `Relaxed`, see the module.
            #[inline(always)]
            pub fn set(&self, value: $plain) {
                self.0.store(value, Ordering::Relaxed);
            }
        }
    };
}

field! {
    /// A byte of a record.
    Field8: AtomicU8, u8
}
field! {
    /// Two bytes of a record.
    Field16: AtomicU16, u16
}
field! {
    /// Four bytes of a record.
    Field32: AtomicU32, u32
}
field! {
    /// A word of a record.
    FieldWord: AtomicUsize, usize
}

/// One block's record. See the module for its states.
#[repr(C, align(64))]
pub struct Block {
    state: AtomicU8,
    /// Kind of the objects.
    pub kind: Field8,
    /// Size class (`Small`).
    pub class: Field8,
    /// The epoch in which the block was last swept to its end (`Small`).
    pub swept: Field8,
    /// Bytes in a cell (`Small`).
    pub cell: Field32,
    /// See [`crate::class::Class::reciprocal`] (`Small`).
    pub reciprocal: Field32,
    /// Number of cells (`Small`), 1 (`Large`).
    pub cells: Field32,
    /// First block of the run (`Tail`).
    pub head: Field32,
    /// Blocks in the run (`Small`, `Large`, `Owned`, and both ends of a `Free` run).
    pub blocks: Field32,
    /// Next in the class's list, in the list of large objects, in the pool's bin, or in an owner's list.
    pub next: Field32,
    /// Previous there.
    pub previous: Field32,
    /// What the marker scans: a descriptor of the kind, with the object's size where it asks for it.
    pub descriptor: FieldWord,
    /// Address of the mark byte of cell 0.
    pub marks: FieldWord,
    /// Whose block it is (`Small`, `Owned`): see [`crate::owners`]; [`NONE`] for nobody's.
    pub owner: Field32,
    /// Explicit frees after which it is worth a look whether the block is empty, 0 where the next has one, and where the state is another
    /// (`Small`): a hint, also written without a lock. Its uppermost bit says that no free goes without the lock, and is written under it;
    /// or that several that went without counted below 0, where the next has a look.
    pub frees_until_look: Field16,
    /// The epoch in which the block was put among those to be swept again (`Small`).
    pub again: Field8,
    /// See [`Self::part`], and above it [`FREED`].
    part: Field8,
    /// Exact usable bytes (`Large`); 1 where the run's content is known to be zero (`Free`, `Owned`).
    pub size: FieldWord,
}

const _: () = assert!(size_of::<Block>() == 64);

impl Block {
    /// Where the state is.
    pub const STATE: usize = core::mem::offset_of!(Self, state);

    /// A record of nothing.
    #[allow(clippy::new_without_default)] // A constant, which `default` is not.
    pub const fn new() -> Self {
        Self {
            state: AtomicU8::new(State::Untouched as u8),
            kind: Field8::new(),
            class: Field8::new(),
            swept: Field8::new(),
            cell: Field32::new(),
            reciprocal: Field32::new(),
            cells: Field32::new(),
            head: Field32::new(),
            blocks: Field32::new(),
            next: Field32::new(),
            previous: Field32::new(),
            descriptor: FieldWord::new(),
            marks: FieldWord::new(),
            owner: Field32::new(),
            frees_until_look: Field16::new(),
            again: Field8::new(),
            part: Field8::new(),
            size: FieldWord::new(),
        }
    }

    /// What the block is used for.
    #[inline(always)]
    pub fn state(&self) -> State {
        // ORDER block.publish: Acquire, with the store in `set_state`, for readers that are not stopped.
        match self.state.load(Ordering::Acquire) {
            1 => State::Free,
            2 => State::Small,
            3 => State::Large,
            4 => State::Tail,
            5 => State::Owned,
            _ => State::Untouched,
        }
    }

    /// Publishes the record in a new state.
    pub fn set_state(&self, state: State) {
        // ORDER block.publish: Release, with the load in `state`: the fields are set before.
        self.state.store(state as u8, Ordering::Release);
    }

    /// The owner in whose lists the block is, or the part of everybody's lists (`Small`).
    pub fn lists(&self) -> usize {
        if self.owner.get() == NONE { self.part() } else { self.owner.get() as usize }
    }

    /// In which of several lists that belong to nobody in particular the block is (`Small`).
    pub fn part(&self) -> usize {
        (self.part.get() & !FREED) as usize
    }

    /// See [`Self::part`], which is below 128.
    pub fn set_part(&self, part: usize) {
        self.part.set(self.part.get() & FREED | part as u8 & !FREED);
    }

    /// Whether something was ever freed explicitly in the block, whatever it has been used for since.
    #[inline(always)]
    pub fn was_freed_in(&self) -> bool {
        self.part.get() & FREED != 0
    }

    /// Something is about to be freed explicitly in the block. The caller's object is there until then, so the block keeps its part.
    #[inline(always)]
    pub fn note_free(&self) {
        self.part.set(self.part.get() | FREED);
    }

    /// A sweep is through with the block: the next explicit free there has a look, for it must be swept again.
    pub fn set_swept(&self, epoch: u8) {
        self.swept.set(epoch);
        self.frees_until_look.set(0);
    }

    /// The mark byte of a cell.
    ///
    /// # Safety
    /// The record is `Small` or `Large`, and `cell` is below `cells`.
    #[inline(always)]
    pub unsafe fn mark(&self, cell: usize) -> &'static AtomicU8 {
        // SAFETY: the mark table reserves a byte for each cell of each block and is never unmapped.
        unsafe { &*core::ptr::with_exposed_provenance::<AtomicU8>(self.marks.get() + cell) }
    }

    /// All mark bytes of the block.
    ///
    /// # Safety
    /// The record is `Small` or `Large`.
    pub unsafe fn all_marks(&self) -> &'static [AtomicU8] {
        // SAFETY: as in `mark`.
        unsafe {
            core::slice::from_raw_parts(
                core::ptr::with_exposed_provenance::<AtomicU8>(self.marks.get()),
                self.cells.get() as usize,
            )
        }
    }
}
