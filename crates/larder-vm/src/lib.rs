//! The C door of the moving heap: the functions of `larder_vm.h`, which documents them.
//!
//! It holds no logic: it checks arguments, and makes a [`larder_moving::Host`] of the functions that a program supplies.

#![no_std]

mod host;

use core::ffi::{c_char, c_int, c_void};
use core::fmt::Write;
use core::mem::ManuallyDrop;
use core::ptr::{self, NonNull};

use larder_lab::{Lowest, Processors, Shape, UPPER, Upper};
use larder_moving::sequence::SHAPE_OF_THREADS;
use larder_moving::{
    Barrier, Collection, Config, CreateError, Functions, Handle, Heap, Keep, Mutator, OLD_BUFFER, Owned, Stats, Thread,
};
use larder_percpu::Level;
use larder_policy::labs::{NearEnd, Sizes, Sizing};
use larder_sys::die;
use larder_units::Bytes;

use host::Program;
pub use host::{Host, Visitor};

larder_sys::freestanding!();

/// `larder_vm`.
type Vm = Heap<Program>;

/// `larder_vm_config`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Settings {
    young: usize,
    most_young: usize,
    old: usize,
    least_old: usize,
    buffer: usize,
    association: c_int,
    by_share: c_int,
    near_end: c_int,
    level: [c_int; UPPER],
    level_sizing: [c_int; UPPER],
    level_buffer: [usize; UPPER],
    level_least: [usize; UPPER],
    level_refills: [c_int; UPPER],
    barrier: c_int,
    collectors: c_int,
    tenure: c_int,
    never_collect: c_int,
    ambiguous_stacks: c_int,
    verify: c_int,
    poison: c_int,
    collect_every: c_int,
}

/// The value, unless the program passed null.
///
/// # Safety
/// The pointer is null or valid for `'a`.
unsafe fn given<'a, T>(pointer: *const T, call: &str) -> &'a T {
    // SAFETY: the caller's promise.
    match unsafe { pointer.as_ref() } {
        Some(value) => value,
        None => die!("{call}: a pointer is null"),
    }
}

/// The calling thread's mutator.
///
/// # Safety
/// The pointer is null, or came from `larder_vm_attach` in this thread.
unsafe fn mutator<'a>(thread: *const Thread, call: &str) -> ManuallyDrop<Mutator<'a, Program>> {
    if thread.is_null() {
        die!("{call}: the thread is null: attach first");
    }
    // SAFETY: the caller's promise; it is not dropped.
    ManuallyDrop::new(unsafe { Mutator::from_raw(thread) })
}

/// Buffers of the lowest level, where the program does not say: as long as two of the longest below it. Each level above has
/// buffers twice as long.
const LEVEL_BUFFER: Bytes = Bytes::mib(1);

/// What a level's buffers begin with, where their sizes change and the program does not say: one in so many of the most. A collection that
/// finds a buffer unused has wasted little, and three refills between two collections lead to the most.
const LEVEL_GROWTH: usize = 4;

fn number(value: c_int, what: &'static str) -> Result<usize, CreateError> {
    usize::try_from(value).map_err(|_| CreateError::Setting(what))
}

fn level_of(level: c_int) -> Result<Option<Level>, CreateError> {
    Ok(match level {
        0 => None,
        1 => Some(Level::Core),
        2 => Some(Level::Cache),
        3 => Some(Level::Package),
        4 => Some(Level::Node),
        5 => Some(Level::Process),
        _ => return Err(CreateError::Setting("level must be one of enum larder_vm_level, 0 to 5")),
    })
}

fn level_sizes(settings: &Settings, k: usize) -> Result<Sizes, CreateError> {
    let no = |what| Err(CreateError::Setting(what));
    let (sizing, refills) = (settings.level_sizing[k], settings.level_refills[k]);
    let (most, least) = (settings.level_buffer[k], settings.level_least[k]);
    if settings.level[k] == 0 && (most != 0 || least != 0 || sizing != 0 || refills != 0) {
        return no("level_buffer and its kin say how large a level's buffers are, and there is no level: set one");
    }
    if sizing != 2 && refills != 0 {
        return no("level_refills is for buffers by share: set level_sizing to LARDER_VM_BY_SHARE");
    }
    let most = if most == 0 { LEVEL_BUFFER.0 << k } else { most };
    let sizing = match sizing {
        0 if least != 0 => return no("level_least is for sizes that change: set level_sizing, or leave it at 0"),
        0 => return Ok(Sizes::fixed(Bytes(most))),
        1 => Sizing::Adaptive,
        2 => match refills {
            0 => Sizes::by_share().sizing,
            n => match u32::try_from(n) {
                Ok(target_refills) => Sizing::Share { target_refills },
                Err(_) => return no("level_refills must not be negative"),
            },
        },
        _ => return no("level_sizing must be one of enum larder_vm_sizing, 0 to 2"),
    };
    if least > most {
        return no("level_least must not be above level_buffer");
    }
    let least = Bytes(if least == 0 { most / LEVEL_GROWTH } else { least });
    Ok(Sizes { sizing, initial: least, least, most: Bytes(most) })
}

/// `follows_flips`: the host has a function for that.
fn config_of(settings: &Settings, follows_flips: bool) -> Result<Config, CreateError> {
    let sizes = match (settings.buffer, settings.by_share) {
        (0, 0) => Sizes::adaptive(),
        (0, _) => Sizes::by_share(),
        (bytes, 0) => Sizes::fixed(Bytes(bytes)),
        _ => return Err(CreateError::Setting("by_share is for sizes that adapt: leave buffer at 0")),
    };
    let lowest = match settings.association {
        0 if follows_flips => Lowest::FewThreads(Processors::ConcurrencyIds),
        0 | 6 => Lowest::Processors(Processors::ConcurrencyIds),
        1 => Lowest::Threads,
        2 => Lowest::Processors(Processors::Cpus),
        3 => Lowest::Flip(Processors::ConcurrencyIds),
        4 => Lowest::Flip(Processors::Cpus),
        5 => Lowest::Nobody,
        _ => return Err(CreateError::Setting("association must be one of enum larder_vm_association, 0 to 6")),
    };
    let mut buffers = larder_lab::Config::new(lowest, sizes);
    buffers.room = Bytes(settings.young);
    buffers.near_end = match settings.near_end {
        0 => NearEnd::Shrink,
        1 => NearEnd::Singly,
        _ => return Err(CreateError::Setting("near_end must be one of enum larder_vm_near_end, 0 or 1")),
    };
    for (k, upper) in buffers.upper.iter_mut().enumerate() {
        let sizes = level_sizes(settings, k)?;
        *upper = level_of(settings.level[k])?.map(|level| Upper { level, sizes });
    }
    // An object comes from the level where nobody has buffers: in the old generation, too.
    let old = match lowest {
        Lowest::Nobody => buffers,
        // These are not taken back where a flip comes.
        Lowest::FewThreads(processors) => {
            larder_lab::Config::new(Lowest::Processors(processors), Sizes::fixed(OLD_BUFFER))
        }
        _ => larder_lab::Config::new(lowest, Sizes::fixed(OLD_BUFFER)),
    };
    let barrier = match settings.barrier {
        0 => Barrier::ConditionalCards,
        1 => Barrier::Cards,
        2 => Barrier::StoreBuffer,
        _ => return Err(CreateError::Setting("barrier must be one of enum larder_vm_barrier, 0 to 2")),
    };
    Ok(Config {
        young: Bytes(settings.young),
        most_young: Bytes(settings.most_young),
        old: Bytes(settings.old),
        least_old: Bytes(settings.least_old),
        collectors: number(settings.collectors, "collectors must not be negative")?,
        tenure: u8::try_from(settings.tenure).unwrap_or(0),
        barrier,
        buffers,
        old_buffers: old,
        null: settings.never_collect != 0,
        ambiguous_stacks: settings.ambiguous_stacks != 0,
        verify: settings.verify != 0,
        poison: settings.poison != 0,
        collect_every: number(settings.collect_every, "collect_every must not be negative")?,
    })
}

/// See `larder_vm.h`.
///
/// # Safety
/// The pointer is null, or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn larder_vm_default_config(settings: *mut Settings) {
    let Some(settings) = NonNull::new(settings) else { die!("larder_vm_default_config: a pointer is null") };
    let config = Config::default();
    let value = Settings {
        young: config.young.0,
        most_young: config.most_young.0,
        old: config.old.0,
        least_old: config.least_old.0,
        buffer: 0,
        association: 0,
        by_share: 0,
        near_end: 0,
        level: [0; UPPER],
        level_sizing: [0; UPPER],
        level_buffer: [0; UPPER],
        level_least: [0; UPPER],
        level_refills: [0; UPPER],
        barrier: 0,
        collectors: 0,
        tenure: c_int::from(config.tenure),
        never_collect: 0,
        ambiguous_stacks: 0,
        verify: 0,
        poison: 0,
        collect_every: 0,
    };
    // SAFETY: the caller's promise.
    unsafe { settings.write(value) };
}

/// Writes into the program's buffer, as far as there is room, and ends with a zero byte.
struct Text {
    at: *mut c_char,
    left: usize,
}

impl Write for Text {
    fn write_str(&mut self, text: &str) -> core::fmt::Result {
        for &byte in text.as_bytes() {
            if self.left < 2 {
                break;
            }
            // SAFETY: two bytes are left at least, of what the program gave.
            unsafe {
                self.at.write(byte as c_char);
                self.at = self.at.add(1);
                self.at.write(0);
            }
            self.left -= 1;
        }
        Ok(())
    }
}

/// See `larder_vm.h`.
///
/// # Safety
/// The pointers are valid; the host's functions are what the header asks for.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn larder_vm_create(
    settings: *const Settings,
    host: *const Host,
    error: *mut c_char,
    size: usize,
) -> *const c_void {
    // SAFETY: the caller's promise.
    let (settings, host) = unsafe { (given(settings, "larder_vm_create"), given(host, "larder_vm_create")) };
    let Some(program) = Program::new(host) else { die!("larder_vm_create: the host has no size or no scan function") };
    match config_of(settings, host.flipped.is_some()).and_then(|config| Heap::create(config, program)) {
        Ok(heap) => heap.into_raw().as_ptr().cast_const().cast(),
        Err(why) => {
            if !error.is_null() && size != 0 {
                // For one byte, too, in which there is room for nothing else.
                // SAFETY: the caller's promise.
                unsafe { error.write(0) };
                let _ = write!(Text { at: error, left: size }, "{why}");
            }
            ptr::null()
        }
    }
}

/// See `larder_vm.h`.
///
/// # Safety
/// The heap is one of `larder_vm_create`, without threads, and not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn larder_vm_destroy(vm: *mut c_void) {
    if let Some(vm) = NonNull::new(vm.cast::<Vm>()) {
        // SAFETY: the caller's promise.
        drop(unsafe { Owned::from_raw(vm) });
    }
}

/// See `larder_vm.h`.
///
/// # Safety
/// The heap is one of `larder_vm_create`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn larder_vm_attach(vm: *const c_void) -> *const Thread {
    // SAFETY: the caller's promise.
    match unsafe { given(vm.cast::<Vm>(), "larder_vm_attach") }.attach() {
        Ok(mutator) => mutator.into_raw(),
        Err(_) => ptr::null(),
    }
}

/// See `larder_vm.h`.
///
/// # Safety
/// The thread is the calling one, and not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn larder_vm_detach(thread: *const Thread) {
    // SAFETY: the caller's promise.
    drop(ManuallyDrop::into_inner(unsafe { mutator(thread, "larder_vm_detach") }));
}

/// See `larder_vm.h`.
///
/// # Safety
/// The thread is the calling one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn larder_vm_allocate_slow(thread: *const Thread, size: usize) -> *mut c_void {
    // SAFETY: the caller's promise.
    let mutator = unsafe { mutator(thread, "larder_vm_allocate") };
    mutator.allocate(size).map_or(ptr::null_mut(), <*mut u8>::cast)
}

/// See `larder_vm.h`.
///
/// # Safety
/// The heap is one of `larder_vm_create`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn larder_vm_get_functions(vm: *const c_void) -> *const Functions {
    // SAFETY: the caller's promise.
    unsafe { given(vm.cast::<Vm>(), "larder_vm_get_functions") }.functions()
}

/// See `larder_vm.h`.
///
/// # Safety
/// The heap is one of `larder_vm_create`; `sequence` is valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn larder_vm_get_sequence(vm: *const c_void, sequence: *mut Shape) -> c_int {
    if sequence.is_null() {
        die!("larder_vm_get_sequence: a pointer is null");
    }
    // SAFETY: the caller's promise.
    let buffers = unsafe { given(vm.cast::<Vm>(), "larder_vm_get_sequence") }.buffers();
    let (shape, way) = match (buffers.way().is_by_thread(), buffers.shape()) {
        (true, _) => (SHAPE_OF_THREADS, 0),
        (false, Some(shape)) => (shape, 1),
        (false, None) => (Shape::NONE, -1),
    };
    // SAFETY: the caller's promise.
    unsafe { sequence.write(shape) };
    way
}

/// See `larder_vm.h`.
///
/// # Safety
/// The thread is the calling one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn larder_vm_allocate_old(thread: *const Thread, size: usize) -> *mut c_void {
    // SAFETY: the caller's promise.
    let mutator = unsafe { mutator(thread, "larder_vm_allocate_old") };
    mutator.allocate_old(size).map_or(ptr::null_mut(), <*mut u8>::cast)
}

/// See `larder_vm.h`.
///
/// # Safety
/// The thread is the calling one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn larder_vm_poll_slow(thread: *const Thread) {
    // SAFETY: the caller's promise.
    unsafe { mutator(thread, "larder_vm_poll") }.poll();
}

/// See `larder_vm.h`.
///
/// # Safety
/// The thread is the calling one; the slot is one of an object's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn larder_vm_after_store(thread: *const Thread, slot: *mut usize, value: usize) {
    // SAFETY: the caller's promise.
    unsafe { mutator(thread, "larder_vm_store") }.after_store(slot, value);
}

/// See `larder_vm.h`.
///
/// # Safety
/// The thread is the calling one; the function may be called with the argument.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn larder_vm_blocking(
    thread: *const Thread,
    f: Option<unsafe extern "C" fn(*mut c_void) -> *mut c_void>,
    argument: *mut c_void,
) -> *mut c_void {
    let Some(f) = f else { die!("larder_vm_blocking: the function is null") };
    // SAFETY: the caller's promise.
    unsafe { mutator(thread, "larder_vm_blocking").blocking(|| f(argument)) }
}

/// See `larder_vm.h`.
///
/// # Safety
/// The thread is the calling one; the function, if there is one, may be called with the argument.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn larder_vm_fork(
    thread: *const Thread,
    f: Option<unsafe extern "C" fn(*mut c_void) -> c_int>,
    argument: *mut c_void,
) -> c_int {
    // SAFETY: the caller's promise.
    let mut mutator = unsafe { mutator(thread, "larder_vm_fork") };
    // SAFETY: as above.
    mutator.fork(|| unsafe { f.map_or_else(|| libc::fork(), |f| f(argument)) })
}

fn collection(kind: c_int) -> Collection {
    match kind {
        0 => Collection::Young,
        1 => Collection::Full,
        _ => die!("larder_vm_collect: the kind must be LARDER_VM_YOUNG or LARDER_VM_FULL, not {kind}"),
    }
}

/// See `larder_vm.h`.
///
/// # Safety
/// The thread is the calling one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn larder_vm_collect(thread: *const Thread, kind: c_int) {
    // SAFETY: the caller's promise.
    unsafe { mutator(thread, "larder_vm_collect") }.collect(collection(kind));
}

/// See `larder_vm.h`.
///
/// # Safety
/// The thread is the calling one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn larder_vm_handle(thread: *const Thread, reference: usize, keep: c_int) -> u32 {
    let keep = match keep {
        0 => Keep::Strong,
        1 => Keep::Weak,
        2 => Keep::Pinned,
        _ => die!("larder_vm_handle: `keep` must be one of enum larder_vm_keep, 0 to 2, not {keep}"),
    };
    // SAFETY: the caller's promise.
    unsafe { mutator(thread, "larder_vm_handle") }.handle(reference, keep).0
}

/// See `larder_vm.h`.
///
/// # Safety
/// The thread is the calling one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn larder_vm_handle_get(thread: *const Thread, handle: u32) -> usize {
    // SAFETY: the caller's promise.
    unsafe { mutator(thread, "larder_vm_handle_get") }.get_handle(Handle(handle))
}

/// See `larder_vm.h`.
///
/// # Safety
/// The thread is the calling one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn larder_vm_handle_set(thread: *const Thread, handle: u32, reference: usize) {
    // SAFETY: the caller's promise.
    unsafe { mutator(thread, "larder_vm_handle_set") }.set_handle(Handle(handle), reference);
}

/// See `larder_vm.h`.
///
/// # Safety
/// The thread is the calling one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn larder_vm_handle_release(thread: *const Thread, handle: u32) {
    // SAFETY: the caller's promise.
    unsafe { mutator(thread, "larder_vm_handle_release") }.release(Handle(handle));
}

/// See `larder_vm.h`.
///
/// # Safety
/// The thread is the calling one; the object is one of its heap.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn larder_vm_watch(thread: *const Thread, object: usize, token: usize) {
    // SAFETY: the caller's promise.
    unsafe { mutator(thread, "larder_vm_watch") }.watch(object, token);
}

/// See `larder_vm.h`.
///
/// # Safety
/// The thread is the calling one; `token` is null or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn larder_vm_next_dead(thread: *const Thread, token: *mut usize) -> usize {
    // SAFETY: the caller's promise.
    let Some((object, watched_as)) = unsafe { mutator(thread, "larder_vm_next_dead") }.next_dead() else { return 0 };
    if !token.is_null() {
        // SAFETY: the caller's promise.
        unsafe { token.write(watched_as) };
    }
    object
}

/// See `larder_vm.h`.
///
/// # Safety
/// The heap is one of `larder_vm_create`; the range is readable and aligned as long as it lives.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn larder_vm_add_ambiguous(vm: *const c_void, from: *const usize, to: *const usize) {
    // SAFETY: the caller's promise.
    unsafe { given(vm.cast::<Vm>(), "larder_vm_add_ambiguous").add_ambiguous(from..to) };
}

/// See `larder_vm.h`.
///
/// # Safety
/// The heap is one of `larder_vm_create`; `stats` is valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn larder_vm_get_stats(vm: *const c_void, stats: *mut Stats) {
    if stats.is_null() {
        die!("larder_vm_get_stats: a pointer is null");
    }
    // SAFETY: the caller's promise.
    unsafe { stats.write(given(vm.cast::<Vm>(), "larder_vm_get_stats").stats()) };
}
