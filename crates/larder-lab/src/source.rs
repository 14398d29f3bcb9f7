//! What is below the buffers: a space that gives chunks of memory and takes rests back.

use larder_units::Bytes;

/// A run of memory that belongs to whoever has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// Its first address.
    pub start: usize,
    /// One past its last.
    pub end: usize,
    /// The collection epoch in which it was obtained. In a later one it is not memory any more.
    pub epoch: u64,
}

impl Chunk {
    /// How long it is.
    pub const fn bytes(self) -> Bytes {
        Bytes(self.end - self.start)
    }

    /// The first `bytes` of it, and the rest.
    pub const fn split(self, bytes: usize) -> (Self, Self) {
        let middle = self.start + bytes;
        (Self { end: middle, ..self }, Self { start: middle, ..self })
    }
}

/// What is asked of a space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// A shorter chunk is of no use.
    pub least: Bytes,
    /// A longer one is not wanted, but may be what the space hands out at least.
    pub most: Bytes,
    /// Whether the space may collect when it has less than `least`. Only the last request of an allocation may; before it,
    /// smaller ones were tried.
    pub may_collect: bool,
}

/// Why a rest comes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// Its buffer was given another chunk, or its thread ended. The program runs.
    Abandoned,
    /// The world is stopped, and every buffer gives back what it has.
    Stop,
}

/// Numbered points of the slow paths, in the order in which a refill passes them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u32)]
pub enum Point {
    /// The transaction has begun, and the pair was read.
    Begun = 1,
    /// The upper level's buffer was chosen, and not looked at yet.
    Chosen = 2,
    /// An upper level's buffer is marked; its rest was not given back.
    Marked = 3,
    /// The rest was given back; the chunk was not asked for.
    TailGivenBack = 4,
    /// The upper level's chunk was obtained; its buffer is still marked.
    LevelObtained = 5,
    /// The upper level's buffer is open again.
    Finished = 6,
    /// The lowest buffer's chunk was obtained; the commit follows.
    Obtained = 7,
    /// Interference was benign; the commit follows again.
    Reopened = 8,
    /// The commit is made; the old rest was not given back.
    Committed = 9,
    /// All is done but the statistics.
    RestGivenBack = 10,
    /// The chunk goes to the sideline.
    Sidelining = 11,
}

impl Point {
    /// All of them.
    pub const ALL: [Self; 11] = [
        Self::Begun,
        Self::Chosen,
        Self::Marked,
        Self::TailGivenBack,
        Self::LevelObtained,
        Self::Finished,
        Self::Obtained,
        Self::Reopened,
        Self::Committed,
        Self::RestGivenBack,
        Self::Sidelining,
    ];
}

/// The space below a set of buffers.
///
/// The buffers call it from any thread. What they hold is one of: a chunk that was obtained and not given back, an object
/// that was allocated, or a rest that was given back.
///
/// **Deferral.** The buffers' slow path calls `obtain` and `give_back`, and in between it has chunks in its hands that no
/// buffer shows. So a thread in [`Buffers::allocate_slow`](crate::Buffers::allocate_slow) must not be stopped for a collection, except
/// inside `obtain` with `may_collect`: the host's slow path defers stops (`larder_threads::defer`), and the space's `obtain` ends the
/// deferral where it waits for a collection.
///
/// # Safety
/// `obtain` returns memory that nobody else has, writable, in the epoch that it names, until it is given back or the epoch ends.
pub unsafe trait ChunkSource: Sync {
    /// Whether a thread may be inside an allocation's fast path while the world is stopped: one that the host does not know, or
    /// that stands where a signal stopped it, before the commit. A stop then aborts the sequences of all CPUs, which takes
    /// 10 to 25 us with threads on other CPUs. A host whose threads stop where they look for it says that it need not.
    const STOPPED_ANYWHERE: bool = true;

    /// A chunk of at least `least`, at most `most` bytes (or what the space hands out at least), whose ends are multiples of what the host asks objects for. `None`
    /// when there is not so much left, and, where the space may collect, there is not after a collection either.
    ///
    /// Two chunks that touch may become one buffer, with objects across: see [`may_join`](Self::may_join).
    fn obtain(&self, request: Request) -> Option<Chunk>;

    /// Makes a chunk ready for objects, before any is taken from it: clears it, if objects must find their memory cleared. It
    /// may take as long as it likes (VEE'05, section 5.1).
    ///
    /// Not in `obtain`: what an upper level obtains is large, and others go elsewhere until it is there.
    #[inline(always)]
    fn prepare(&self, chunk: Chunk) {
        _ = chunk;
    }

    /// Whether the rest of a buffer that ends at `at` may be joined to a chunk that begins there, so that an object may reach across. A
    /// space whose parts are collected apart says no where one begins.
    #[inline(always)]
    fn may_join(&self, at: usize) -> bool {
        _ = at;
        true
    }

    /// Takes a rest back: the space reuses it, or fills it with a dead object so that a walk over the heap finds its way.
    ///
    /// # Safety
    /// The rest is the end of a chunk of this space, of the present epoch, and the caller's alone.
    unsafe fn give_back(&self, rest: Chunk, why: Why);

    /// How many collections there were: changes during each stop after which chunks of before are no memory any more.
    fn epoch(&self) -> u64;

    /// What nobody has obtained yet. A hint: buffers shrink by it near the end.
    fn left(&self) -> Bytes;

    /// The buffers belong to others now ([`Buffers::retire_all`](crate::Buffers::retire_all) has flipped them). The world is
    /// stopped. A host that inlined the old sequence emits the new one; until then the old one misses into the slow path.
    fn flipped(&self, to: larder_policy::labs::Side) {
        _ = to;
    }

    /// The calling thread is at this point of a slow path. For stress: a host may let others come between here, as the scheduler
    /// may at any instruction. It does nothing unless the space says otherwise.
    #[inline(always)]
    fn at(&self, point: Point) {
        _ = point;
    }
}
