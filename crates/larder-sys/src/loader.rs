//! What the dynamic loader knows: which objects are mapped, and where their writable data and thread-local storage lie.

use core::ffi::{CStr, c_char, c_void};
use core::sync::atomic::{AtomicPtr, Ordering};

use larder_units::PAGE;

use crate::list_lock;
use crate::thread::thread_pointer;

/// A writable range of an object, or a thread-local segment.
#[derive(Clone, Copy, Debug)]
pub struct Object<'a> {
    /// The object's path; empty for the program itself.
    pub name: &'a CStr,
    /// Its load address.
    pub base: usize,
    headers: &'a [libc::Elf64_Phdr],
    /// Its thread-local module number, 0 if it has none.
    pub tls_module: usize,
}

impl Object<'_> {
    /// Calls `f(start, end)` for each range of writable data that stays writable (RELRO is left out).
    pub fn writable_ranges(&self, mut f: impl FnMut(usize, usize)) {
        let relro = self
            .headers
            .iter()
            .find(|h| h.p_type == libc::PT_GNU_RELRO)
            .map(|h| {
                let start = self.base + h.p_vaddr as usize;
                // The loader protects whole pages only.
                (start & !4095, (start + h.p_memsz as usize) & !4095)
            })
            .unwrap_or((0, 0));
        for h in self.headers.iter().filter(|h| h.p_type == libc::PT_LOAD && h.p_flags & libc::PF_W != 0) {
            let start = self.base + h.p_vaddr as usize;
            let end = start + h.p_memsz as usize;
            if relro.0 < end && start < relro.1 {
                if start < relro.0 {
                    f(start, relro.0);
                }
                if relro.1 < end {
                    f(relro.1, end);
                }
            } else {
                f(start, end);
            }
        }
    }

    /// Size of the object's thread-local segment in each thread.
    pub fn tls_size(&self) -> usize {
        self.headers.iter().find(|h| h.p_type == libc::PT_TLS).map_or(0, |h| h.p_memsz as usize)
    }

    /// The executable segment that contains `address`, if it is readable.
    pub fn code_range(&self, address: usize) -> Option<[usize; 2]> {
        let code = libc::PF_X | libc::PF_R;
        self.headers.iter().filter(|h| h.p_type == libc::PT_LOAD && h.p_flags & code == code).find_map(|h| {
            let start = self.base + h.p_vaddr as usize;
            let end = start + h.p_memsz as usize;
            (start..end).contains(&address).then_some([start, end])
        })
    }

    /// Whether `address` lies in one of the object's loaded segments.
    pub fn contains(&self, address: usize) -> bool {
        self.headers.iter().filter(|h| h.p_type == libc::PT_LOAD).any(|h| {
            let start = self.base + h.p_vaddr as usize;
            (start..start + h.p_memsz as usize).contains(&address)
        })
    }
}

/// Calls `f` for every mapped object, the program first, while the loader holds its list: nothing is mapped or
/// unmapped until this returns. May be nested. `f` returns false to end the walk.
pub fn for_each_object<F: FnMut(&Object<'_>) -> bool>(mut f: F) {
    walk(|info| {
        if list_lock::is_gone(info.dlpi_name) {
            return true;
        }
        // SAFETY: the loader passes a valid record of an object that is mapped.
        let (name, headers) = unsafe {
            let name = if info.dlpi_name.is_null() { c"" } else { CStr::from_ptr(info.dlpi_name) };
            let headers: &[libc::Elf64_Phdr] = if info.dlpi_phdr.is_null() {
                &[]
            } else {
                core::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum as usize)
            };
            (name, headers)
        };
        f(&Object { name, base: info.dlpi_addr as usize, headers, tls_module: info.dlpi_tls_modid })
    });
}

/// `struct dl_find_object` of dlfcn.h, as glibc has it on this architecture.
#[repr(C)]
struct FoundObject {
    flags: u64,
    start: *const libc::Elf64_Ehdr,
    end: *const u8,
    map: *const LinkMap,
    eh_frame: *const c_void,
    reserved: [u64; 7],
}

/// The public beginning of `struct link_map` of link.h.
#[repr(C)]
struct LinkMap {
    base: usize,
    name: *const c_char,
}

type FindObject = unsafe extern "C" fn(*const c_void, *mut FoundObject) -> i32;

/// `_dl_find_object`, null where the C library has none (before glibc 2.35). Sync: written at initialisation; the function is code.
static FIND_OBJECT: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());

/// Looks for what [`look_at_object_of`] wants. For initialisation.
pub fn find() {
    // SAFETY: a C string.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"_dl_find_object".as_ptr()) };
    FIND_OBJECT.store(found, Ordering::Relaxed);
}

/// Calls `f` for the object that has `address` in its image, if one has, without taking the loader's list. The caller knows that the object stays mapped: it has a
/// use for the address. False where that cannot be done.
pub fn look_at_object_of(address: usize, f: impl FnOnce(&Object<'_>)) -> bool {
    let find = FIND_OBJECT.load(Ordering::Relaxed);
    if find.is_null() {
        return false;
    }
    // SAFETY: `find` stores the function of this name; zeroes are a structure for it to fill in.
    unsafe {
        let find = core::mem::transmute::<*mut c_void, FindObject>(find);
        let mut found = core::mem::zeroed::<FoundObject>();
        if find(core::ptr::with_exposed_provenance(address), &mut found) != 0 {
            return true;
        }
        let map = &*found.map;
        let Some(headers) = headers_at(found.start).or_else(|| headers_of_program(map.base)) else { return false };
        f(&Object {
            name: if map.name.is_null() { c"" } else { CStr::from_ptr(map.name) },
            base: map.base,
            headers,
            tls_module: 0,
        });
    }
    true
}

/// The segments of the image that begins there: with its header, unless it was linked in a strange way. Of one with holes the C library may tell the
/// beginning of a later segment.
///
/// # Safety
/// Memory of an object that stays mapped begins there.
unsafe fn headers_at<'a>(start: *const libc::Elf64_Ehdr) -> Option<&'a [libc::Elf64_Phdr]> {
    /// Most segments that are looked for: these bytes are mapped, since the first page is.
    const MOST: usize = 64;
    if !start.addr().is_multiple_of(PAGE.0) {
        return None;
    }
    // SAFETY: the caller's promise; a page begins there.
    let header = unsafe { &*start };
    let (at, n) = (header.e_phoff as usize, header.e_phnum as usize);
    let is_one = header.e_ident[..4] == *b"\x7fELF" && header.e_phentsize as usize == size_of::<libc::Elf64_Phdr>();
    // SAFETY: an ELF header says where its segments are, and what is that near is in its first page.
    (is_one && n <= MOST && at < PAGE.0 - MOST * size_of::<libc::Elf64_Phdr>())
        .then(|| unsafe { core::slice::from_raw_parts(start.wrapping_byte_add(at).cast(), n) })
}

/// The segments of the program itself, if it is loaded at `base`, as the kernel told them.
fn headers_of_program<'a>(base: usize) -> Option<&'a [libc::Elf64_Phdr]> {
    // SAFETY: plain questions; the kernel's answers are a table that stays mapped.
    let headers = unsafe {
        let [at, n] = [libc::AT_PHDR, libc::AT_PHNUM].map(|question| libc::getauxval(question) as usize);
        if at == 0 {
            return None;
        }
        core::slice::from_raw_parts(core::ptr::with_exposed_provenance::<libc::Elf64_Phdr>(at), n)
    };
    let own = headers.iter().find(|header| header.p_type == libc::PT_PHDR)?;
    (base.wrapping_add(own.p_vaddr as usize) == headers.as_ptr().addr()).then_some(headers)
}

/// Calls `f` with the name and the headers of every object that is listed, mapped or not.
pub(crate) fn for_each_listed(mut f: impl FnMut(*const c_char, *const libc::Elf64_Phdr)) {
    walk(|info| {
        f(info.dlpi_name, info.dlpi_phdr);
        true
    });
}

/// Calls `f` with the loader's record of every object, until it returns false.
fn walk<F: FnMut(&libc::dl_phdr_info) -> bool>(f: F) {
    struct State<F>(F);
    unsafe extern "C" fn visit<F: FnMut(&libc::dl_phdr_info) -> bool>(
        info: *mut libc::dl_phdr_info,
        _size: usize,
        state: *mut c_void,
    ) -> i32 {
        // SAFETY: the loader passes a valid record, and `state` is the one that `walk` passed.
        unsafe { if ((*state.cast::<State<F>>()).0)(&*info) { 0 } else { 1 } }
    }
    let mut state = State(f);
    // SAFETY: the callback and its state match, and the state outlives the call.
    unsafe { libc::dl_iterate_phdr(Some(visit::<F>), (&raw mut state).cast()) };
}

/// Runs `f` while the loader holds its list, so that no object can be unmapped meanwhile (dlclose waits).
pub fn with_objects_held<R>(f: impl FnOnce() -> R) -> R {
    let mut f = Some(f);
    let mut result = None;
    for_each_object(|_| {
        if let Some(f) = f.take() {
            result = Some(f());
        }
        false
    });
    match result {
        Some(r) => r,
        // A statically linked program may show no object at all; then nothing can be unmapped either.
        None => (f.take().expect("the walk did not run it"))(),
    }
}

/// The longest vector that is one: no process has so many modules.
const LONGEST_VECTOR: usize = 1 << 20;

/// Whether the thread's vector of thread-local blocks can be read. While the C library replaces a vector by a longer one, there is
/// a moment in which the control block names the old one and malloc has it back. malloc then has written over its
/// first words, of which one was the length, an address or a mangled one, which no length is.
///
/// # Safety
/// As for [`tls_block`].
pub unsafe fn has_whole_vector(thread_pointer: *const u8) -> bool {
    // SAFETY: the second word of the control block is the vector's address.
    unsafe {
        let vector = thread_pointer.cast::<*const [usize; 2]>().add(1).read();
        vector.is_null() || (*vector.sub(1))[0] < LONGEST_VECTOR
    }
}

/// Where module `module`'s thread-local block lies in the thread whose control block is at `thread_pointer`, if that
/// thread has one already.
///
/// Reads the dynamic thread vector, whose layout glibc keeps stable for debuggers: `dtv[-1].counter` is its length
/// and `dtv[m].pointer.val` the block, all ones where it was not allocated yet.
///
/// # Safety
/// The thread is the calling one, or is stopped and not inside the loader.
pub unsafe fn tls_block(thread_pointer: *const u8, module: usize) -> Option<*const u8> {
    if module == 0 {
        return None;
    }
    // SAFETY: the second word of the control block is the vector's address; bounds are checked by its length.
    unsafe {
        let vector = thread_pointer.cast::<*const [usize; 2]>().add(1).read();
        if vector.is_null() {
            return None;
        }
        let length = (*vector.sub(1))[0];
        if module > length || length >= LONGEST_VECTOR {
            return None;
        }
        let at = (*vector.add(module))[0];
        if at == 0 || at == usize::MAX { None } else { Some(core::ptr::with_exposed_provenance(at)) }
    }
}

/// Where module `module`'s block lies in the thread at `thread_pointer`, found by way of the calling thread: blocks of the
/// static set lie at the same distance from every control block, and only others need the dynamic vector.
///
/// # Safety
/// As for [`tls_block`].
pub unsafe fn tls_block_like_own(thread_pointer: *const u8, module: usize) -> Option<*const u8> {
    /// Bytes below the control block that the static set could take.
    const STATIC: usize = 1 << 20;
    let own = self::thread_pointer();
    if let Some(block) = own_tls_block(module)
        && block.addr() < own.addr()
        && own.addr() - block.addr() < STATIC
    {
        return Some(thread_pointer.wrapping_sub(own.addr() - block.addr()));
    }
    // SAFETY: the caller's promise.
    unsafe { tls_block(thread_pointer, module) }
}

/// As [`tls_block`], for the calling thread.
pub fn own_tls_block(module: usize) -> Option<*const u8> {
    // SAFETY: the calling thread's own vector.
    unsafe { tls_block(thread_pointer(), module) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    static mut MARK: u64 = 1;
    thread_local! { static LOCAL: Cell<u64> = const { Cell::new(5) }; }

    #[test]
    fn own_data_lies_in_a_writable_range_and_own_thread_local_in_a_block() {
        let mark = (&raw const MARK).addr();
        let local = LOCAL.with(|l| std::ptr::from_ref(l).addr());
        let (mut data, mut tls) = (false, false);
        for_each_object(|o| {
            o.writable_ranges(|a, b| data |= (a..b).contains(&mark));
            if let Some(at) = own_tls_block(o.tls_module) {
                tls |= (at.addr()..at.addr() + o.tls_size()).contains(&local);
            }
            true
        });
        assert!(data && tls);
    }

    #[test]
    fn an_object_is_found_by_an_address_as_in_the_list() {
        find();
        let seen = |object: &Object<'_>| {
            let mut ranges = Vec::new();
            object.writable_ranges(|a, b| ranges.push((a, b)));
            (object.name.to_owned(), object.base, ranges)
        };
        let mark = (&raw const MARK).addr();
        // SAFETY: asks for an address only.
        let of_c = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"environ".as_ptr()) }.addr();
        for address in [mark, of_c] {
            let (mut listed, mut found) = (None, None);
            for_each_object(|object| {
                if object.contains(address) {
                    listed = Some(seen(object));
                }
                true
            });
            assert!(look_at_object_of(address, |object| found = Some(seen(object))), "since glibc 2.35");
            assert!(listed.is_some());
            assert_eq!(found, listed);
        }
        let local = 0u8;
        assert!(look_at_object_of((&raw const local).addr(), |_| unreachable!("the stack is in no object")));
    }

    #[test]
    fn the_program_is_known_by_what_the_kernel_told() {
        let mut listed = None;
        for_each_object(|object| {
            listed = Some((object.base, object.headers.len(), object.headers.as_ptr()));
            false
        });
        let (base, n, at) = listed.expect("the program comes first");
        let told = headers_of_program(base).map(|headers| (headers.len(), headers.as_ptr()));
        assert_eq!(told, Some((n, at)));
        assert!(headers_of_program(base + PAGE.0).is_none());
        // SAFETY: memory of this object.
        unsafe {
            assert!(headers_at((&raw const FIND_OBJECT).cast()).is_none(), "no header is in the middle of data");
            let start = core::ptr::with_exposed_provenance(base);
            // An image of the usual kind begins where it is loaded.
            assert!(base == 0 || headers_at(start).is_some_and(|headers| headers.len() == n));
        }
    }

    #[test]
    fn walks_nest() {
        let mut inner = 0;
        with_objects_held(|| {
            for_each_object(|_| {
                inner += 1;
                true
            })
        });
        assert!(inner > 1);
    }
}
