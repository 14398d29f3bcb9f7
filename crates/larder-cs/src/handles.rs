//! `csxCreate` and its kin: domains and handles.

use core::ffi::{c_int, c_uint, c_void};
use core::mem::offset_of;
use core::ptr;
use core::sync::atomic::{AtomicIsize, AtomicU64, Ordering};

use larder_percpu::areas::{Core, Ticket};
use larder_percpu::sequence::frame::HEADER;
use larder_percpu::sequence::inlined::Hold;
use larder_percpu::sequence::table::{self, Id};
use larder_percpu::sequence::{Frame, Header};
use larder_percpu::{Busy, By, Mode, Options, Statistics};
use larder_sys::memory;
use larder_units::PAGE;

/// `struct cs_restarts`.
#[repr(C)]
pub struct Restarts {
    name: [u8; 32],
    count: u64,
}

#[unsafe(no_mangle)]
unsafe extern "C" fn csRestarts(into: *mut Restarts, room: c_uint) -> c_uint {
    let mut sequences = 0;
    for (name, count) in larder_percpu::sequence::table::restarts() {
        if sequences < room {
            let mut entry = Restarts { name: [0; 32], count };
            let length = name.len().min(entry.name.len() - 1);
            entry.name[..length].copy_from_slice(&name.as_bytes()[..length]);
            // SAFETY: the header asks for room for so many.
            unsafe { into.add(sequences as usize).write(entry) };
        }
        sequences += 1;
    }
    sequences
}

/// `struct cs_layout`: what the inlined forms of `larder_cs_inline.h` count restarts in.
#[repr(C)]
pub struct Layout {
    restarts: &'static [AtomicU64; table::COUNT],
}

/// Named after the layout that the inlined forms were compiled for: of frames, heads of areas, handles, and the places of restarts.
/// Who changes one of them renames it, so that no program runs that knows another.
#[allow(non_upper_case_globals)] // A name of the header's.
#[unsafe(no_mangle)]
pub static cs_layout_1: Layout = Layout { restarts: &table::RESTARTS };

const _: () =
    assert!(offset_of!(Frame, rseq_cs) == 0 && offset_of!(Frame, index) == 8 && offset_of!(Frame, base) == 16);
const _: () = assert!(offset_of!(Frame, stride) == 24 && offset_of!(Frame, indices) == 32);
const _: () = assert!(HEADER == 64 && offset_of!(Header, token) == 0 && offset_of!(Header, closed) == 8);
const _: () =
    assert!(Id::begin as usize == 0 && Id::commit_store_32 as usize == 1 && Id::commit_store_64 as usize == 2);
const _: () = assert!(Id::commit_compare_32 as usize == 3 && Id::commit_compare_64 as usize == 4);
const _: () = assert!(Id::commit_pair as usize == 5 && Id::add as usize == 6);
const _: () = assert!(Id::list_pop as usize == 13 && Id::list_push as usize == 14);

/// `cs_handle`.
#[repr(C)]
pub struct Handle {
    domain: *const Core,
    /// Offset of `rseq_cs`; 0 where no sequence may commit it.
    rseq_cs: isize,
    /// The area's content.
    area: *mut u8,
    /// Offset of the index.
    index_word: isize,
    token: u64,
    /// As packed by a ticket: for one that was begun under a lock no index that the kernel gives.
    index: u64,
}

const BY_CPU: c_int = 0;
const BY_CONCURRENCY_ID: c_int = 1;

/// The values of `enum cs_mode`.
pub fn mode(core: &Core) -> c_int {
    match core.mode() {
        Mode::Locks(_) => 0,
        Mode::Cpus => 1,
        Mode::ConcurrencyIds => 2,
        Mode::Levels => 3,
    }
}

impl Handle {
    fn new(core: &Core, ticket: Ticket) -> Self {
        let (token, index) = ticket.parts();
        // Relaxed: a transaction has begun, so the frame is set up.
        let word = |word: &AtomicIsize| word.load(Ordering::Relaxed);
        let frame = core.frame();
        Self {
            domain: core,
            token,
            area: core.content(ticket.index as usize),
            index: index.into(),
            rseq_cs: if index == ticket.index { word(&frame.rseq_cs) } else { Hold::LOCKED },
            index_word: word(&frame.index),
        }
    }

    fn ticket(&self) -> Ticket {
        Ticket::from_parts(self.token, self.index as u32)
    }

    /// # Safety
    /// The handle was begun, on a domain that exists.
    unsafe fn core<'d>(&self) -> &'d Core {
        // SAFETY: the caller's promise.
        unsafe { &*self.domain }
    }

    /// Counts a failure once, and makes the handle hold nowhere.
    ///
    /// # Safety
    /// As for [`Handle::core`].
    unsafe fn noted(&mut self, status: u32) -> c_int {
        if status == larder_percpu::sequence::transaction::INTERFERED && self.token != 0 {
            let ticket = self.ticket();
            self.token = 0;
            // SAFETY: the handle was begun. Relaxed: a counter, as the others here.
            unsafe { self.core() }.header(ticket.index as usize).failed.fetch_add(1, Ordering::Relaxed);
        }
        status as c_int
    }

    /// Counts a transaction that is left while it holds.
    ///
    /// # Safety
    /// As for [`Handle::core`].
    unsafe fn count_abandoned(&self) {
        if self.token != 0 {
            // SAFETY: the handle was begun.
            unsafe { self.core() }.header(self.ticket().index as usize).abandoned.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Where a domain lies in its page. At the page's beginning its words would have the last 12 bits of an address in common with
/// those of the first area, which begins a page, and the processor takes a load for one of what was just stored there: a
/// transaction took twice as long.
const PLACE: usize = PAGE.0 - 3 * 64;
const _: () = assert!(PLACE + size_of::<Core>() <= PAGE.0 && PLACE.is_multiple_of(align_of::<Core>()));

/// # Safety
/// The domain was made by `csxCreate`, and nobody knows it any more.
unsafe fn unmap(domain: *mut Core) {
    // SAFETY: the page that `csxCreate` mapped.
    unsafe { memory::unmap(domain.cast::<u8>().sub(PLACE), PAGE) };
}

#[unsafe(no_mangle)]
extern "C" fn csxCreate(by: c_int, bytes: usize) -> *mut Core {
    let by = match by {
        BY_CPU => By::Cpu,
        BY_CONCURRENCY_ID => By::ConcurrencyId,
        _ => {
            // SAFETY: errno is the calling thread's.
            unsafe { *libc::__errno_location() = libc::EINVAL };
            return ptr::null_mut();
        }
    };
    let refused = |errno| {
        // SAFETY: as above.
        unsafe { *libc::__errno_location() = errno };
        ptr::null_mut()
    };
    const MOST: usize = 1 << 32;
    if bytes > MOST {
        return refused(libc::EINVAL);
    }
    let at = match memory::map_lazy(PAGE) {
        // SAFETY: inside the page.
        Ok(page) => unsafe { page.add(PLACE) }.cast::<Core>(),
        Err(error) => return refused(error.errno),
    };
    // SAFETY: a fresh mapping, aligned and large enough.
    unsafe { at.write(Core::new(bytes, Options::new(by))) };
    // SAFETY: just written.
    match unsafe { at.as_ref() }.set_up() {
        Ok(()) => at.as_ptr(),
        Err(error) => {
            // SAFETY: nobody else knows the mapping.
            unsafe { unmap(at.as_ptr()) };
            refused(error.errno)
        }
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn csxDestroy(domain: *mut Core) {
    if domain.is_null() {
        return;
    }
    // SAFETY: the header asks that nobody uses the domain any more.
    unsafe {
        (*domain).destroy();
        unmap(domain);
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn csxIndices(domain: *const Core) -> c_uint {
    // SAFETY: the header asks for a domain.
    unsafe { (*domain).areas() as c_uint }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn csxArea(domain: *const Core, index: c_uint) -> *mut c_void {
    // SAFETY: the header asks for a domain.
    let core = unsafe { &*domain };
    if index as usize >= core.areas() {
        larder_sys::die!("csxArea: index {index} of a domain that has {}", core.areas());
    }
    core.content(index as usize).cast()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn csxMode(domain: *const Core) -> c_int {
    // SAFETY: the header asks for a domain.
    mode(unsafe { &*domain })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn csxStatistics(domain: *const Core, into: *mut Statistics) {
    // SAFETY: the header asks for a domain and a writable structure.
    unsafe { into.write(Statistics::of(&*domain)) };
}

#[unsafe(no_mangle)]
unsafe extern "C" fn csxBegin(domain: *const Core, handle: *mut Handle) -> c_uint {
    // SAFETY: the header asks for a domain and a writable handle.
    unsafe {
        let ticket = (*domain).begin();
        handle.write(Handle::new(&*domain, ticket));
        ticket.index
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn csxValid(handle: *const Handle) -> c_int {
    // SAFETY: the header asks for a handle that was begun.
    unsafe { (*handle).core().holds((*handle).ticket()).into() }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn csxEnd(handle: *mut Handle) {
    // SAFETY: as in `csxValid`.
    unsafe { (*handle).token = 0 };
}

#[unsafe(no_mangle)]
unsafe extern "C" fn csxInvalidate(handle: *mut Handle) {
    // SAFETY: as in `csxValid`.
    unsafe {
        let handle = &mut *handle;
        handle.count_abandoned();
        handle.core().header(handle.ticket().index as usize).invalid.fetch_add(1, Ordering::Relaxed);
        handle.token = 0;
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn csxReopen(handle: *mut Handle) -> c_int {
    // SAFETY: as in `csxValid`.
    unsafe {
        let handle = &mut *handle;
        handle.count_abandoned();
        let before = handle.index;
        *handle = Handle::new(handle.core(), handle.core().begin());
        handle.core().header(handle.ticket().index as usize).reopened.fetch_add(1, Ordering::Relaxed);
        (handle.index != before).into()
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn csxST32(handle: *mut Handle, at: *mut c_void, value: i32) -> c_int {
    // SAFETY: the header asks for a handle that was begun, and a place that is writable, aligned and the index's own.
    unsafe { (*handle).noted((*handle).core().store_32((*handle).ticket(), at.cast(), value as u32)) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn csxCAS32(handle: *mut Handle, new: i32, old: i32, at: *mut c_void) -> c_int {
    // SAFETY: as in `csxST32`.
    unsafe { (*handle).noted((*handle).core().compare_32((*handle).ticket(), at.cast(), old as u32, new as u32)) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn csxST64(handle: *mut Handle, at: *mut c_void, value: i64) -> c_int {
    // SAFETY: as in `csxST32`.
    unsafe { (*handle).noted((*handle).core().store_64((*handle).ticket(), at.cast(), value as u64)) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn csxCAS64(handle: *mut Handle, new: i64, old: i64, at: *mut c_void) -> c_int {
    // SAFETY: as in `csxST32`.
    unsafe { (*handle).noted((*handle).core().compare_64((*handle).ticket(), at.cast(), old as u64, new as u64)) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn csxCAS128(
    handle: *mut Handle,
    new: *const [u64; 2],
    old: *const [u64; 2],
    at: *mut c_void,
) -> c_int {
    // SAFETY: as in `csxST32`; two readable words each, and a multiple of 16.
    unsafe { (*handle).noted((*handle).core().compare_pair((*handle).ticket(), at.cast(), old.read(), new.read())) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn csxAdd64(domain: *const Core, offset: usize, value: i64) {
    // SAFETY: the header asks for a domain, and an offset inside its areas.
    unsafe { (*domain).add(offset, value as u64) };
}

#[unsafe(no_mangle)]
unsafe extern "C" fn csxPush(domain: *const Core, offset: usize, node: *mut c_void) {
    let node = node.expose_provenance();
    // SAFETY: as in `csxAdd64`; the node is the caller's.
    unsafe { (*domain).list_push(offset, node, node) };
}

#[unsafe(no_mangle)]
unsafe extern "C" fn csxPop(domain: *const Core, offset: usize) -> *mut c_void {
    // SAFETY: as in `csxAdd64`; what was pushed is readable.
    ptr::with_exposed_provenance_mut(unsafe { (*domain).list_pop(offset) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn csxTakeOver(
    domain: *const Core,
    index: c_uint,
    f: extern "C" fn(*mut c_void, *mut c_void),
    argument: *mut c_void,
) -> c_int {
    // SAFETY: the header asks for a domain.
    let core = unsafe { &*domain };
    if index as usize >= core.areas() {
        return libc::EINVAL;
    }
    taken_over(core.take_over(index as usize, |content| f(content.cast(), argument)))
}

/// What a take-over returns.
pub fn taken_over(result: Result<(), Busy>) -> c_int {
    match result {
        Ok(()) => 0,
        Err(Busy) => libc::EBUSY,
    }
}
