//! `csxCreate` and its kin: domains and handles.

use core::ffi::{c_int, c_uint, c_void};
use core::ptr;
use core::sync::atomic::Ordering;

use larder_percpu::areas::{Core, Ticket};
use larder_percpu::{By, Mode, Options};
use larder_sys::memory;
use larder_units::Bytes;

/// `struct cs_statistics`.
#[repr(C)]
pub struct Statistics {
    begun: u64,
    succeeded: u64,
    failed: u64,
    reopened: u64,
    invalid: u64,
    abandoned: u64,
    taken_over: u64,
    by_lock: u64,
}

impl Statistics {
    /// The counts of a domain.
    pub fn of(core: &Core) -> Self {
        let s = larder_percpu::Statistics::of(core);
        Self {
            begun: s.begun,
            succeeded: s.succeeded,
            failed: s.failed,
            reopened: s.reopened,
            invalid: s.invalid,
            abandoned: s.abandoned,
            taken_over: s.taken_over,
            by_lock: s.by_lock,
        }
    }
}

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

/// `cs_handle`.
#[repr(C)]
pub struct Handle {
    domain: *const Core,
    token: u64,
    index: u32,
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
    fn ticket(&self) -> Ticket {
        Ticket::from_parts(self.token, self.index)
    }

    fn set(&mut self, ticket: Ticket) {
        (self.token, self.index) = ticket.parts();
    }

    /// # Safety
    /// The handle was begun, on a domain that exists.
    unsafe fn core<'d>(&self) -> &'d Core {
        // SAFETY: the caller's promise.
        unsafe { &*self.domain }
    }

    /// Counts a failure once, and makes the handle hold nowhere.
    unsafe fn noted(&mut self, status: u32) -> c_int {
        if status == larder_percpu::sequence::transaction::INTERFERED && self.token != 0 {
            let ticket = self.ticket();
            self.token = 0;
            // SAFETY: the handle was begun. Relaxed: a counter, as the others here.
            unsafe { self.core() }.header(ticket.index as usize).failed.fetch_add(1, Ordering::Relaxed);
        }
        status as c_int
    }

    unsafe fn count_abandoned(&self) {
        if self.token != 0 {
            // SAFETY: the handle was begun.
            unsafe { self.core() }.header(self.ticket().index as usize).abandoned.fetch_add(1, Ordering::Relaxed);
        }
    }
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
    let at = match memory::map_lazy(Bytes(size_of::<Core>())) {
        Ok(at) => at.cast::<Core>(),
        Err(error) => return refused(error.errno),
    };
    // SAFETY: a fresh mapping, page-aligned and large enough.
    unsafe { at.write(Core::new(bytes, Options::new(by))) };
    // SAFETY: just written.
    match unsafe { at.as_ref() }.set_up() {
        Ok(()) => at.as_ptr(),
        Err(error) => {
            // SAFETY: nobody else knows the mapping.
            unsafe { memory::unmap(at.as_ptr().cast(), Bytes(size_of::<Core>())) };
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
        memory::unmap(domain.cast(), Bytes(size_of::<Core>()));
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
        let (token, index) = ticket.parts();
        handle.write(Handle { domain, token, index });
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
        handle.set(handle.core().begin());
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
    match core.take_over(index as usize, |content| f(content.cast(), argument)) {
        Ok(()) => 0,
        Err(larder_percpu::Busy) => libc::EBUSY,
    }
}
