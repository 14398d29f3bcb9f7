//! Write watching: which pages of a range were written since they were last asked for.
//!
//! Three kinds, one interface. A [`Watch`] is attached to a range once; [`begin`](Watch::begin) makes a part of it clean;
//! [`fetch`](Watch::fetch) tells the pages that were written since, and makes them clean again where that is wanted;
//! [`end`](Watch::end) takes every cost away until the next `begin`.
//!
//! | kind | a first write to a clean page | asked for | a system call that writes there |
//! |---|---|---|---|
//! | [`Kind::Uffd`] | a fault that the kernel settles by itself | one `PAGEMAP_SCAN` | is noted like any other write |
//! | [`Kind::SoftDirty`] | the same | one `PAGEMAP_SCAN` or reads of `pagemap` | is noted like any other write |
//! | [`Kind::Mprotect`] | SIGSEGV, and a call of `mprotect` in its handler (the thesis, 5.2) | a bitmap | **fails with EFAULT** |
//!
//! So `Mprotect` is never chosen by itself: only a program whose system calls do not write into watched memory may have
//! it, or one whose calls are wrapped. `SoftDirty` cannot make a page clean while others write: between reading the bit
//! and clearing it a write would be lost; [`Watch::cleans_while_running`] says so.
//!
//! **What `fetch` promises.** Every write that was visible when it was called, to a page that was clean, is told by it or
//! was told before; every write that comes after a page was made clean is told by a later call. With `Uffd` and
//! `Mprotect` the kernel has interrupted every CPU of the process that could still write through an old translation
//! before the call returns, so what the caller reads after it contains the writes that it was told about.
//!
//! A child of fork inherits no watch, but with `Mprotect` the protection: it calls [`Watch::undo_in_child`], and attaches
//! anew.

mod mprotect;
mod soft_dirty;
mod uffd;

pub use mprotect::{Neighbours, set_neighbours};

use larder_units::PAGE;

use crate::memory::errno;
use crate::pagemap;

/// Whether `PAGEMAP_SCAN` works here: it is asked for a page that is surely there.
pub fn scan_works() -> Result<bool, WatchError> {
    let on_stack = 0u8;
    let page = (&raw const on_stack).addr() / PAGE.0 * PAGE.0;
    let mut found = false;
    pagemap::Pagemap::open()?.scan(page, page + PAGE.0, pagemap::PRESENT, false, &mut |_, _| found = true)?;
    Ok(found)
}

/// How writes are noticed. See the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `userfaultfd`, asynchronous write protection (Linux 6.7).
    Uffd,
    /// The soft-dirty bit of page tables, where the kernel was built with it.
    SoftDirty,
    /// `mprotect` and SIGSEGV.
    Mprotect,
}

impl Kind {
    /// Every kind, the best first.
    pub const ALL: [Kind; 3] = [Kind::Uffd, Kind::SoftDirty, Kind::Mprotect];

    /// The name in settings and messages.
    pub const fn name(self) -> &'static str {
        match self {
            Kind::Uffd => "uffd",
            Kind::SoftDirty => "soft-dirty",
            Kind::Mprotect => "mprotect",
        }
    }

    /// The kind of that name.
    pub fn named(name: &[u8]) -> Option<Kind> {
        Self::ALL.into_iter().find(|kind| kind.name().as_bytes() == name)
    }

    /// Whether this machine offers it to this process: found by trying, on a page of its own.
    pub fn is_offered(self) -> bool {
        let Ok(page) = crate::memory::map_lazy(larder_units::PAGE) else { return false };
        let offered = self.works_on(page.as_ptr());
        // SAFETY: the mapping was made above, and the watch on it is gone.
        unsafe { crate::memory::unmap(page.as_ptr(), larder_units::PAGE) };
        offered
    }

    fn works_on(self, page: *mut u8) -> bool {
        if self == Kind::Mprotect {
            return true;
        }
        let (low, high) = (page.expose_provenance(), page.addr() + larder_units::PAGE.0);
        // SAFETY: the caller's own page.
        unsafe { page.write_volatile(1) };
        let Ok(mut watch) = Watch::attach(self, low, high) else { return false };
        let mut told = [0; 2];
        let mut ask = |watch: &mut Watch, at: usize| watch.fetch(low, high, false, &mut |_, _| told[at] += 1).is_ok();
        let began = watch.begin(low, high).is_ok() && ask(&mut watch, 0);
        // SAFETY: as above.
        unsafe { page.write_volatile(2) };
        let works = began && ask(&mut watch, 1) && told == [0, 1];
        watch.end(low, high);
        works
    }

    /// The kind to take where nothing is asked for: the first that this machine offers and that is right for every
    /// program.
    pub fn best() -> Option<Kind> {
        [Kind::Uffd, Kind::SoftDirty].into_iter().find(|kind| kind.is_offered())
    }
}

/// The kernel refused a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WatchError {
    /// The system call.
    pub call: &'static str,
    /// Its `errno`.
    pub errno: i32,
}

impl WatchError {
    pub(crate) fn of(call: &'static str) -> Self {
        Self { call, errno: errno() }
    }
}

/// Bytes whose protection one system call changes, a fraction of a millisecond: as long as that lasts, whoever maps memory or
/// creates a thread waits for the address space, and behind it every page fault.
const PIECE: usize = 8 << 20;

/// Calls `f(from, to)` for one piece of `[low, high)` after the other.
fn in_pieces(
    low: usize,
    high: usize,
    f: &mut dyn FnMut(usize, usize) -> Result<(), WatchError>,
) -> Result<(), WatchError> {
    (low..high).step_by(PIECE).try_for_each(|from| f(from, high.min(from + PIECE)))
}

enum Inner {
    Uffd(uffd::Uffd),
    SoftDirty(soft_dirty::SoftDirty),
    Mprotect(mprotect::Protection),
}

/// The handler of SIGSEGV of the kind [`Kind::Mprotect`]: it must run with the mask that it is installed with.
pub const FAULT_HANDLER: crate::signal::Handler = mprotect::on_fault;

/// Ends a watch as [`Watch::end`] does, from any thread, as long as the [`Watch`] exists.
#[derive(Clone, Copy)]
pub struct Ender(uffd::Ender);

impl Ender {
    /// As [`Watch::end`]. One system call.
    pub fn end(self, low: usize, high: usize) {
        _ = self.0.end(low, high);
    }
}

/// Asks as [`Watch::fetch`] does, for several threads at once, and makes nothing clean.
#[derive(Clone, Copy)]
pub struct Asker<'a>(&'a uffd::Uffd);

impl Asker<'_> {
    /// As [`Watch::fetch`]; who wants to know how many pages those were counts them.
    pub fn fetch(&self, low: usize, high: usize, f: &mut dyn FnMut(usize, usize)) -> Result<(), WatchError> {
        self.0.fetch(low, high, false, f)
    }
}

/// A watched range. One thread at a time uses it; all bounds are page-aligned and inside the range.
pub struct Watch {
    inner: Inner,
    /// The end of what is attached.
    high: usize,
}

impl Watch {
    /// Prepares to watch `[low, high)`, of which parts may be inaccessible. Nothing is watched yet. One watch of the kind
    /// `Mprotect` at a time in a process.
    pub fn attach(kind: Kind, low: usize, high: usize) -> Result<Self, WatchError> {
        let inner = match kind {
            Kind::Uffd => Inner::Uffd(uffd::Uffd::attach(low, high)?),
            Kind::SoftDirty => Inner::SoftDirty(soft_dirty::SoftDirty::attach()?),
            Kind::Mprotect => Inner::Mprotect(mprotect::Protection::attach(low, high)?),
        };
        Ok(Self { inner, high })
    }

    /// Attaches what lies between the end of what is attached and `high`, if anything does: a range may be mapped piece by piece. Only for the
    /// kind `Uffd`, whose range is to be mapped; others are attached to all of it at once.
    pub fn extend(&mut self, high: usize) -> Result<(), WatchError> {
        if let Inner::Uffd(u) = &self.inner
            && high > self.high
        {
            u.register(self.high, high)?;
            self.high = high;
        }
        Ok(())
    }

    /// What kind this is.
    pub fn kind(&self) -> Kind {
        match self.inner {
            Inner::Uffd(_) => Kind::Uffd,
            Inner::SoftDirty(_) => Kind::SoftDirty,
            Inner::Mprotect(_) => Kind::Mprotect,
        }
    }

    /// Whether `fetch` can make pages clean while other threads write.
    pub fn cleans_while_running(&self) -> bool {
        self.kind() != Kind::SoftDirty
    }

    /// Makes every page of `[low, high)` clean. Other threads may write meanwhile: what they write after this has
    /// returned is noticed.
    pub fn begin(&mut self, low: usize, high: usize) -> Result<(), WatchError> {
        match &mut self.inner {
            Inner::Uffd(u) => u.protect(low, high),
            Inner::SoftDirty(s) => s.begin(),
            Inner::Mprotect(m) => m.begin(low, high),
        }
    }

    /// Calls `f(from, to)` for each run of pages in `[low, high)` that is not clean; with `clean` they are from here on.
    /// Pages that were never in a `begin` are not clean once they were written. Returns how many pages those were.
    pub fn fetch(
        &mut self,
        low: usize,
        high: usize,
        clean: bool,
        f: &mut dyn FnMut(usize, usize),
    ) -> Result<usize, WatchError> {
        let mut pages = 0;
        let mut count = |from: usize, to: usize| {
            pages += (to - from) / larder_units::PAGE.0;
            f(from, to);
        };
        match &mut self.inner {
            Inner::Uffd(u) => u.fetch(low, high, clean, &mut count)?,
            Inner::SoftDirty(s) => s.fetch(low, high, &mut count)?,
            Inner::Mprotect(m) => m.fetch(low, high, clean, &mut count)?,
        }
        Ok(pages)
    }

    /// Ends watching `[low, high)`: writes cost nothing any more.
    pub fn end(&mut self, low: usize, high: usize) {
        match &mut self.inner {
            // Where it fails, first writes go on to cost a fault, and nothing else.
            Inner::Uffd(u) => _ = u.unprotect(low, high),
            Inner::SoftDirty(_) => {}
            Inner::Mprotect(m) => m.end(low, high),
        }
    }

    /// What ends the watch of parts of the range by other threads meanwhile; `None` where `end` is all that can.
    pub fn ender(&self) -> Option<Ender> {
        match &self.inner {
            Inner::Uffd(u) => Some(Ender(u.ender())),
            _ => None,
        }
    }

    /// What several threads can ask at once; `None` where [`fetch`](Watch::fetch) is all that can.
    pub fn asker(&self) -> Option<Asker<'_>> {
        match &self.inner {
            Inner::Uffd(u) => Some(Asker(u)),
            _ => None,
        }
    }

    /// Whether ranges outside of the attached one can be watched as well: see [`add`](Watch::add).
    pub fn takes_more(&self) -> bool {
        self.kind() == Kind::Uffd
    }

    /// Watches `[low, high)` as well, which lies outside of the attached range, until [`remove`](Watch::remove): makes it clean. A part of
    /// a mapping will do, such as the live part of a stack; it becomes a mapping of its own meanwhile. The memory is private and has no
    /// file behind it.
    pub fn add(&mut self, low: usize, high: usize) -> Result<(), WatchError> {
        match &mut self.inner {
            Inner::Uffd(u) => u.add(low, high),
            Inner::SoftDirty(_) | Inner::Mprotect(_) => Err(WatchError { call: "userfaultfd", errno: libc::ENOTSUP }),
        }
    }

    /// Calls `f(from, to)`, in the order of addresses, for each run of pages between `low` and `high` that was written since it was added, or is not
    /// watched: what was unmapped, and mapped anew at the same address, is not watched any more. What another user of `userfaultfd` watches so is
    /// told where it was written.
    pub fn fetch_added(&mut self, low: usize, high: usize, f: &mut dyn FnMut(usize, usize)) -> Result<(), WatchError> {
        match &mut self.inner {
            Inner::Uffd(u) => u.fetch_added(low, high, f),
            Inner::SoftDirty(_) | Inner::Mprotect(_) => Err(WatchError { call: "userfaultfd", errno: libc::ENOTSUP }),
        }
    }

    /// Takes [`add`](Watch::add) back. The memory may have been unmapped meanwhile.
    pub fn remove(&mut self, low: usize, high: usize) {
        if let Inner::Uffd(u) = &mut self.inner {
            u.remove(low, high);
        }
    }

    /// In a child of fork, whose parent had a watch of that kind: makes `[low, high)` writable. The watch itself is the
    /// parent's; whoever held it forgets it without dropping it.
    pub fn undo_in_child(kind: Kind, low: usize, high: usize) {
        if kind == Kind::Mprotect {
            mprotect::undo(low, high);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory;
    use larder_units::{Bytes, PAGE};

    const PAGES: usize = 300;

    /// Behind a page that nobody can access: the kernel may join what can be written with a mapping that another test makes just before it,
    /// and then takes all of it for dirty.
    struct Range(*mut u8);

    impl Range {
        fn new() -> Self {
            let reserved = memory::reserve(Bytes((1 + 2 * PAGES) * PAGE.0), PAGE).unwrap().as_ptr();
            let at = reserved.wrapping_add(PAGE.0);
            // SAFETY: the first half of what follows in a reservation of this test's.
            unsafe { memory::commit(at, Bytes(PAGES * PAGE.0)).unwrap() };
            Self(at)
        }

        fn low(&self) -> usize {
            self.0.expose_provenance()
        }

        fn high(&self) -> usize {
            self.low() + PAGES * PAGE.0
        }

        fn write(&self, page: usize) {
            // SAFETY: a page of the committed half.
            unsafe { self.0.add(page * PAGE.0 + 8).cast::<u64>().write_volatile(page as u64) };
        }

        /// Maps other pages in the place of some.
        fn map_anew(&self, from: usize, to: usize) {
            let (at, bytes) = (self.0.wrapping_add(from * PAGE.0).cast(), (to - from) * PAGE.0);
            let (access, flags) =
                (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED);
            // SAFETY: pages of the committed half, to which nothing refers.
            assert_eq!(unsafe { libc::mmap(at, bytes, access, flags, -1, 0) }, at);
        }

        fn dirty(&self, watch: &mut Watch, clean: bool) -> Vec<usize> {
            let mut pages = Vec::new();
            watch
                .fetch(self.low(), self.high(), clean, &mut |from, to| {
                    pages.extend((from..to).step_by(PAGE.0).map(|at| (at - self.low()) / PAGE.0));
                })
                .unwrap();
            pages
        }
    }

    impl Drop for Range {
        fn drop(&mut self) {
            // SAFETY: the whole reservation, which nobody uses any more.
            unsafe { memory::unmap(self.0.wrapping_sub(PAGE.0), Bytes((1 + 2 * PAGES) * PAGE.0)) };
        }
    }

    /// Where the kind is not offered there is nothing to test; `larder doctor` says why.
    fn watched(kind: Kind) -> Option<(Range, Watch)> {
        if !kind.is_offered() {
            eprintln!("SKIPPED: this machine does not offer {}", kind.name());
            return None;
        }
        let range = Range::new();
        let watch = Watch::attach(kind, range.low(), range.low() + 2 * PAGES * PAGE.0).unwrap();
        Some((range, watch))
    }

    fn tells_what_was_written(kind: Kind) {
        let Some((range, mut watch)) = watched(kind) else { return };
        (0..PAGES / 2).for_each(|page| range.write(page));
        watch.begin(range.low(), range.high()).unwrap();
        assert_eq!(range.dirty(&mut watch, false), []);
        let written = [0, 1, 63, 64, 65, 149];
        written.iter().for_each(|&page| range.write(page));
        assert_eq!(range.dirty(&mut watch, false), written, "told");
        assert_eq!(range.dirty(&mut watch, false), written, "and again, as nobody made them clean");
        // Reading makes nothing dirty.
        // SAFETY: a page of the committed half.
        assert_eq!(unsafe { range.0.add(100 * PAGE.0 + 8).cast::<u64>().read_volatile() }, 100);
        // A page that had no memory when the watch began.
        range.write(PAGES - 1);
        assert!(range.dirty(&mut watch, false).contains(&(PAGES - 1)), "a first touch is a write");
        if watch.cleans_while_running() {
            range.dirty(&mut watch, true);
            assert_eq!(range.dirty(&mut watch, false), [], "clean again");
            range.write(64);
            assert_eq!(range.dirty(&mut watch, true), [64]);
        }
        watch.end(range.low(), range.high());
        (0..PAGES).for_each(|page| range.write(page));
        watch.begin(range.low(), range.high()).unwrap();
        assert_eq!(range.dirty(&mut watch, false), [], "a second watch begins clean");
        range.write(2);
        assert_eq!(range.dirty(&mut watch, false), [2]);
        watch.end(range.low(), range.high());
    }

    /// Several threads write while pages are made clean again and again: every write is told at last, and what is read
    /// after a fetch contains the writes that it told.
    fn loses_no_write(kind: Kind) {
        use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
        let Some((range, mut watch)) = watched(kind) else { return };
        if !watch.cleans_while_running() {
            return;
        }
        watch.begin(range.low(), range.high()).unwrap();
        let (stop, low) = (AtomicBool::new(false), range.low());
        let word = |page: usize, thread: usize| {
            // SAFETY: a word of the committed half; each thread has its own in each page.
            unsafe { &*core::ptr::with_exposed_provenance::<AtomicU64>(low + page * PAGE.0 + thread * 8) }
        };
        let mut copy = vec![[0; 3]; PAGES];
        let mut take = |watch: &mut Watch| {
            for page in range.dirty(watch, true) {
                for (thread, copied) in copy[page].iter_mut().enumerate() {
                    *copied = word(page, thread).load(Ordering::Relaxed);
                }
            }
            copy.clone()
        };
        std::thread::scope(|scope| {
            for thread in 0..3 {
                let (stop, word) = (&stop, &word);
                scope.spawn(move || {
                    let mut at = thread as u64 + 1;
                    while !stop.load(Ordering::Relaxed) {
                        at = at.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                        word((at >> 33) as usize % PAGES, thread).fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
            for _ in 0..300 {
                take(&mut watch);
            }
            stop.store(true, Ordering::Relaxed);
        });
        let copied = take(&mut watch);
        for (page, words) in copied.iter().enumerate() {
            for (thread, &copied) in words.iter().enumerate() {
                assert_eq!(copied, word(page, thread).load(Ordering::Relaxed), "page {page}, thread {thread}");
            }
        }
        watch.end(range.low(), range.high());
    }

    /// The process has one SIGSEGV handler, so the tests of `mprotect` do not run beside one another.
    static MPROTECT: std::sync::Mutex<()> = std::sync::Mutex::new(());

    #[test]
    fn uffd_tells_what_was_written() {
        tells_what_was_written(Kind::Uffd);
    }

    #[test]
    fn uffd_loses_no_write() {
        loses_no_write(Kind::Uffd);
    }

    #[test]
    fn soft_dirty_tells_what_was_written() {
        tells_what_was_written(Kind::SoftDirty);
    }

    #[test]
    fn mprotect_tells_what_was_written() {
        let _one = MPROTECT.lock().unwrap();
        tells_what_was_written(Kind::Mprotect);
    }

    #[test]
    fn mprotect_loses_no_write() {
        let _one = MPROTECT.lock().unwrap();
        loses_no_write(Kind::Mprotect);
    }

    /// What a client's handler was told, and where its fault shall be settled.
    static TOLD: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);

    extern "C" fn client(signal: i32, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
        // SAFETY: the kernel's structure; the page is this test's.
        unsafe {
            let at = (*info).si_addr();
            TOLD.store(at.addr() + signal as usize, std::sync::atomic::Ordering::Relaxed);
            libc::mprotect(at.map_addr(|a| a & !(PAGE.0 - 1)), PAGE.0, libc::PROT_READ | libc::PROT_WRITE);
        }
    }

    #[test]
    fn mprotect_passes_faults_on_that_are_not_its_own() {
        use std::sync::atomic::Ordering;
        let _one = MPROTECT.lock().unwrap();
        let own = memory::map_lazy(PAGE).unwrap().as_ptr();
        // SAFETY: the handler is async-signal-safe, and the page this test's.
        unsafe { assert!(crate::signal::install(libc::SIGSEGV, client, &crate::signal::Mask::all_but_faults())) };
        let (range, mut watch) = watched(Kind::Mprotect).unwrap();
        range.write(3);
        watch.begin(range.low(), range.high()).unwrap();
        // SAFETY: as above; the client's handler makes the page writable.
        unsafe {
            assert_eq!(libc::mprotect(own.cast(), PAGE.0, libc::PROT_READ), 0);
            own.add(24).write_volatile(7);
        }
        assert_eq!(TOLD.load(Ordering::Relaxed), own.addr() + 24 + libc::SIGSEGV as usize);
        range.write(3);
        assert_eq!(range.dirty(&mut watch, true), [3], "ours are still noticed");
        assert_eq!(
            TOLD.load(Ordering::Relaxed),
            own.addr() + 24 + libc::SIGSEGV as usize,
            "and not told to the client"
        );
        watch.end(range.low(), range.high());
    }

    /// Writers whose faults are raised just before a watch ends are neither told to the client, whose handler here would say so, nor
    /// the end of the process; but a page that the client protects itself is its own.
    #[test]
    fn mprotect_keeps_late_faults_to_itself() {
        use std::sync::atomic::{AtomicBool, Ordering};
        let _one = MPROTECT.lock().unwrap();
        // SAFETY: the handler is async-signal-safe.
        unsafe { assert!(crate::signal::install(libc::SIGSEGV, client, &crate::signal::Mask::all_but_faults())) };
        TOLD.store(0, Ordering::Relaxed);
        let (range, mut watch) = watched(Kind::Mprotect).unwrap();
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let (range, over) = (&range, &over);
            for writer in 0..6 {
                let low = range.low();
                scope.spawn(move || {
                    while !over.load(Ordering::Relaxed) {
                        for page in 0..PAGES {
                            let at =
                                core::ptr::with_exposed_provenance_mut::<u64>(low + page * PAGE.0 + 16 + 8 * writer);
                            // SAFETY: a page of the committed half.
                            unsafe { at.write_volatile(1) };
                        }
                    }
                });
            }
            for _ in 0..3000 {
                watch.begin(range.low(), range.high()).unwrap();
                watch.end(range.low(), range.high());
            }
            over.store(true, Ordering::Relaxed);
        });
        assert_eq!(TOLD.load(Ordering::Relaxed), 0, "a late fault was told to the client");
        let at = range.low() + 5 * PAGE.0;
        // SAFETY: a page of the committed half; the client's handler makes it writable.
        unsafe {
            let page = core::ptr::with_exposed_provenance_mut::<u8>(at);
            assert_eq!(libc::mprotect(page.cast(), PAGE.0, libc::PROT_READ), 0);
            page.write_volatile(7);
        }
        assert_eq!(TOLD.load(Ordering::Relaxed), at + libc::SIGSEGV as usize, "this one is the client's");
    }

    #[test]
    fn mprotect_makes_neighbours_writable_together() {
        let _one = MPROTECT.lock().unwrap();
        let (range, mut watch) = watched(Kind::Mprotect).unwrap();
        (0..PAGES).for_each(|page| range.write(page));
        watch.begin(range.low(), range.high()).unwrap();
        set_neighbours(|page| (page - PAGE.0, page + 3 * PAGE.0));
        range.write(70);
        set_neighbours(|page| (page, page + PAGE.0));
        range.write(10);
        assert_eq!(range.dirty(&mut watch, true), [10, 69, 70, 71, 72]);
        watch.end(range.low(), range.high());
    }

    #[test]
    fn a_system_call_that_writes_is_noticed_by_uffd() {
        let Some((range, mut watch)) = watched(Kind::Uffd) else { return };
        range.write(5);
        watch.begin(range.low(), range.high()).unwrap();
        let mut ends = [0; 2];
        // SAFETY: the pipe is this test's, and the buffer a page of the range.
        unsafe {
            assert_eq!(libc::pipe(ends.as_mut_ptr()), 0);
            assert_eq!(libc::write(ends[1], c"pointer".as_ptr().cast(), 7), 7);
            assert_eq!(libc::read(ends[0], range.0.add(5 * PAGE.0).cast(), 7), 7);
            ends.into_iter().for_each(|end| assert_eq!(libc::close(end), 0));
        }
        assert_eq!(range.dirty(&mut watch, true), [5]);
        watch.end(range.low(), range.high());
    }

    /// Parts of other mappings come and go; what is not watched counts as written; what was unmapped is no error.
    #[test]
    fn parts_of_other_mappings_are_watched_for_a_while() {
        let Some((_range, mut watch)) = watched(Kind::Uffd) else { return };
        let others = [Range::new(), Range::new()];
        others.iter().for_each(|other| (0..PAGES).for_each(|page| other.write(page)));
        let part = |other: &Range| (other.low() + 10 * PAGE.0, other.low() + 20 * PAGE.0);
        for other in &others {
            let (low, high) = part(other);
            watch.add(low, high).unwrap();
        }
        // Which pages of a watched part were written.
        let ask = |watch: &mut Watch, other: &Range| {
            let mut pages = Vec::new();
            watch
                .fetch_added(other.low(), other.high(), &mut |from, to| {
                    assert!(from < to && other.low() <= from && to <= other.high());
                    pages.extend((from..to).step_by(PAGE.0).map(|at| (at - other.low()) / PAGE.0));
                })
                .unwrap();
            assert!(pages.is_sorted());
            let (inside, outside): (Vec<_>, Vec<_>) = pages.into_iter().partition(|page| (10..20).contains(page));
            assert!(outside.into_iter().eq((0..10).chain(20..PAGES)), "what is not watched counts as written");
            inside
        };
        others.iter().for_each(|other| [9, 12, 19, 20, 100].iter().for_each(|&page| other.write(page)));
        others.iter().for_each(|other| assert_eq!(ask(&mut watch, other), [12, 19]));
        let [kept, gone] = others;
        let removed = part(&gone);
        drop(gone);
        watch.remove(removed.0, removed.1);
        kept.write(15);
        assert_eq!(ask(&mut watch, &kept), [12, 15, 19], "nobody made them clean");
        let (low, high) = part(&kept);
        watch.remove(low, high);
        kept.write(16);
        assert!(ask(&mut watch, &kept).into_iter().eq(10..20), "it is not watched any more");
        watch.add(low, high).unwrap();
        assert_eq!(ask(&mut watch, &kept), [], "a second watch begins clean");
        kept.write(16);
        assert_eq!(ask(&mut watch, &kept), [16]);
        kept.map_anew(13, 15);
        assert_eq!(ask(&mut watch, &kept), [13, 14, 16], "what was mapped anew is not watched");
        kept.write(14);
        assert_eq!(ask(&mut watch, &kept), [13, 14, 16], "written or not");
        watch.remove(low, high);
    }

    #[test]
    fn kinds_that_watch_one_range_say_so() {
        let _one = MPROTECT.lock().unwrap();
        let (_range, mut watch) = watched(Kind::Mprotect).unwrap();
        assert!(!watch.takes_more() && watch.add(PAGE.0, 2 * PAGE.0).is_err());
        assert!(watch.fetch_added(PAGE.0, 2 * PAGE.0, &mut |_, _| {}).is_err());
    }

    #[test]
    fn names_name_kinds() {
        for kind in Kind::ALL {
            assert_eq!(Kind::named(kind.name().as_bytes()), Some(kind));
        }
        assert_eq!(Kind::named(b"none"), None);
    }
}
