//! What a language implementation supplies: the layout of its objects, its roots, and what it wants to be told.
//!
//! The heap knows nothing of an object but where it begins. It asks the host how long an object is and where its
//! references are, and it keeps one word of a *dead* copy to say where the live one went.

/// Receives the references of an object, one slot at a time.
///
/// A slot holds 0, a reference (the address of an object's first byte, perhaps with tag bits as [`Host::TAG_MASK`]
/// says), or a word that is no address in the heap. Slots are 8 bytes and aligned.
pub trait Visitor {
    /// A slot that keeps what it refers to.
    fn slot(&mut self, slot: *mut usize);

    /// A slot that does not: it is set to 0 when its referent has died. Before finalizers are looked at.
    fn weak(&mut self, slot: *mut usize);

    /// Two slots of one object. The value is kept by the key, while something else keeps the key; both are set to 0 when
    /// the key has died.
    fn ephemeron(&mut self, key: *mut usize, value: *mut usize);
}

/// Receives roots.
pub trait RootVisitor {
    /// A slot outside of the heap that keeps what it refers to, and is changed when that moves.
    fn slot(&mut self, slot: *mut usize);
}

/// What the heap asks of its host.
///
/// # Safety
/// `size` and `scan` tell the truth about every object, and read nothing but the object itself and memory outside of the
/// heap: another object may be half moved. They are called in a stopped world by several collectors at once; they do not
/// call the heap, block or unwind. An object that [`Mutator::allocate`](crate::Mutator::allocate) returned is zero; its
/// thread makes it such that `size` and `scan` are right before it next reaches a safepoint.
pub unsafe trait Host: Sync + Sized {
    /// Low bits of a slot that are not part of the address; they stay when the address changes. At most 7.
    const TAG_MASK: usize = 0;

    /// Offset in bytes, 0 or 8, of the forwarding word: the word that holds the new address once an object has moved. In a live object
    /// it is the host's own, but bit 0 is never set. Always the same.
    #[inline(always)]
    fn forwarding_word(&self) -> usize {
        0
    }

    /// The object's size in bytes, as it was allocated.
    ///
    /// `word` is what the forwarding word holds: use it, not memory, which another collector may have changed already.
    ///
    /// # Safety
    /// `object` is an object of this heap.
    unsafe fn size(&self, object: *mut u8, word: usize) -> usize;

    /// Shows every slot of the object, once.
    ///
    /// # Safety
    /// `object` is an object of this heap, and its forwarding word is the host's.
    unsafe fn scan<V: Visitor>(&self, object: *mut u8, visitor: &mut V);

    /// Shows the object's slots with addresses in `from..to`, and perhaps others. Worth writing where long objects have
    /// many references: dirty cards, and the pieces into which long objects are split, are scanned by it.
    ///
    /// # Safety
    /// As for [`Host::scan`].
    unsafe fn scan_part<V: Visitor>(&self, object: *mut u8, from: usize, to: usize, visitor: &mut V) {
        let _ = (from, to);
        // SAFETY: the caller's promise.
        unsafe { self.scan(object, visitor) };
    }

    /// Shows the roots that the host keeps itself, each once, and none that is a frame's. Called by one thread, several times in a
    /// collection.
    fn roots<V: RootVisitor>(&self, visitor: &mut V) {
        let _ = visitor;
    }

    /// A collection begins; the world is stopped, nothing has moved.
    fn before_collection(&self, kind: Collection) {
        let _ = kind;
    }

    /// Allocation buffers belong to others now: a collection, or a fork's child, has flipped them. The world is stopped.
    ///
    /// The host updates its classes' functions ([`ClassFunction::update`](crate::ClassFunction)) and emits inlined sequences anew;
    /// what still goes the old way finds nothing there and is redirected by the slow path.
    fn flipped(&self, way: larder_lab::Way) {
        let _ = way;
    }

    /// A collection ends; the world is still stopped.
    fn after_collection(&self, kind: Collection) {
        let _ = kind;
    }
}

/// What is collected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Collection {
    /// The young generation, by copying.
    Young,
    /// The young generation, and then all of the heap by marking and compacting.
    Full,
}

/// Passes on the slots of a part of an object.
pub(crate) struct Part<'a, V> {
    pub inner: &'a mut V,
    pub from: usize,
    pub to: usize,
}

impl<V: Visitor> Visitor for Part<'_, V> {
    #[inline(always)]
    fn slot(&mut self, slot: *mut usize) {
        if (self.from..self.to).contains(&slot.addr()) {
            self.inner.slot(slot);
        }
    }

    fn weak(&mut self, slot: *mut usize) {
        if (self.from..self.to).contains(&slot.addr()) {
            self.inner.weak(slot);
        }
    }

    fn ephemeron(&mut self, key: *mut usize, value: *mut usize) {
        // In one piece: half of a pair says nothing. That a pair is shown for both of its parts does no harm.
        let part = self.from..self.to;
        if part.contains(&key.addr()) || part.contains(&value.addr()) {
            self.inner.ephemeron(key, value);
        }
    }
}
