//! The program's functions as a host.

use core::ffi::{c_int, c_void};

use larder_moving::{Collection, RootVisitor, Way};

/// `larder_vm_visitor`.
#[repr(C)]
pub struct Visitor {
    slots: unsafe extern "C" fn(*mut Visitor, *mut usize, usize),
    weak: unsafe extern "C" fn(*mut Visitor, *mut usize),
    ephemeron: unsafe extern "C" fn(*mut Visitor, *mut usize, *mut usize),
    /// The heap's visitor; the program does not see it.
    inner: *mut c_void,
}

type Size = unsafe extern "C" fn(*mut c_void, *const u8, usize) -> usize;
type Scan = unsafe extern "C" fn(*mut c_void, *mut u8, usize, usize, *mut Visitor);
type Roots = unsafe extern "C" fn(*mut c_void, *mut Visitor);
type Hook = unsafe extern "C" fn(*mut c_void, c_int);

/// `larder_vm_host`.
#[repr(C)]
pub struct Host {
    context: *mut c_void,
    size: Option<Size>,
    scan: Option<Scan>,
    roots: Option<Roots>,
    before: Option<Hook>,
    after: Option<Hook>,
    pub(crate) flipped: Option<Hook>,
    forwarding_word: usize,
}

/// A host that has what it must have.
pub(crate) struct Program {
    context: *mut c_void,
    size: Size,
    scan: Scan,
    roots: Option<Roots>,
    before: Option<Hook>,
    after: Option<Hook>,
    flipped: Option<Hook>,
    forwarding_word: usize,
}

// SAFETY: the header says that the functions are called on several threads, with this context.
unsafe impl Sync for Program {}
// SAFETY: as above.
unsafe impl Send for Program {}

impl Program {
    /// `None` if a function is missing that must be there.
    pub fn new(host: &Host) -> Option<Self> {
        let Host { context, size, scan, roots, before, after, flipped, forwarding_word } = *host;
        Some(Self { context, size: size?, scan: scan?, roots, before, after, flipped, forwarding_word })
    }
}

/// # Safety
/// The visitor was made by `visitor_of::<V>` and is in use.
unsafe fn inner<'a, V>(visitor: *mut Visitor) -> &'a mut V {
    // SAFETY: the caller's promise.
    unsafe { &mut *(*visitor).inner.cast::<V>() }
}

unsafe extern "C" fn slots<V: larder_moving::Visitor>(visitor: *mut Visitor, first: *mut usize, count: usize) {
    // SAFETY: the program passes on what it was given.
    let inner = unsafe { inner::<V>(visitor) };
    for i in 0..count {
        inner.slot(first.wrapping_add(i));
    }
}

unsafe extern "C" fn weak<V: larder_moving::Visitor>(visitor: *mut Visitor, slot: *mut usize) {
    // SAFETY: as in `slots`.
    unsafe { inner::<V>(visitor) }.weak(slot);
}

unsafe extern "C" fn ephemeron<V: larder_moving::Visitor>(visitor: *mut Visitor, key: *mut usize, value: *mut usize) {
    // SAFETY: as in `slots`.
    unsafe { inner::<V>(visitor) }.ephemeron(key, value);
}

unsafe extern "C" fn root_slots<V: RootVisitor>(visitor: *mut Visitor, first: *mut usize, count: usize) {
    // SAFETY: as in `slots`.
    let inner = unsafe { inner::<V>(visitor) };
    for i in 0..count {
        inner.slot(first.wrapping_add(i));
    }
}

unsafe extern "C" fn no_weak_root(_: *mut Visitor, _: *mut usize) {
    larder_sys::die!("larder_vm_host.roots: a weak root is a handle, LARDER_VM_WEAK");
}

unsafe extern "C" fn no_ephemeron_root(_: *mut Visitor, _: *mut usize, _: *mut usize) {
    larder_sys::die!("larder_vm_host.roots: an ephemeron is part of an object");
}

// SAFETY: the header asks of the program what `Host` asks of an implementation.
unsafe impl larder_moving::Host for Program {
    const TAG_MASK: usize = 7;

    #[inline(always)]
    fn forwarding_word(&self) -> usize {
        self.forwarding_word
    }

    unsafe fn size(&self, object: *mut u8, word: usize) -> usize {
        // SAFETY: the program's function, with an object of its own.
        unsafe { (self.size)(self.context, object, word) }
    }

    unsafe fn scan<V: larder_moving::Visitor>(&self, object: *mut u8, visitor: &mut V) {
        // SAFETY: as for `scan_part`.
        unsafe { self.scan_part(object, 0, usize::MAX, visitor) };
    }

    unsafe fn scan_part<V: larder_moving::Visitor>(&self, object: *mut u8, from: usize, to: usize, visitor: &mut V) {
        let mut visitor = Visitor {
            slots: slots::<V>,
            weak: weak::<V>,
            ephemeron: ephemeron::<V>,
            inner: core::ptr::from_mut(visitor).cast(),
        };
        // SAFETY: the program's function, with an object of its own.
        unsafe { (self.scan)(self.context, object, from, to, &mut visitor) };
    }

    fn roots<V: RootVisitor>(&self, visitor: &mut V) {
        let Some(roots) = self.roots else { return };
        let mut visitor = Visitor {
            slots: root_slots::<V>,
            weak: no_weak_root,
            ephemeron: no_ephemeron_root,
            inner: core::ptr::from_mut(visitor).cast(),
        };
        // SAFETY: the program's function.
        unsafe { roots(self.context, &mut visitor) };
    }

    fn before_collection(&self, kind: Collection) {
        if let Some(before) = self.before {
            // SAFETY: the program's function.
            unsafe { before(self.context, kind as c_int) };
        }
    }

    fn flipped(&self, way: Way) {
        if let Some(flipped) = self.flipped {
            // SAFETY: the program's function.
            unsafe { flipped(self.context, c_int::from(!way.is_by_thread())) };
        }
    }

    fn after_collection(&self, kind: Collection) {
        if let Some(after) = self.after {
            // SAFETY: the program's function.
            unsafe { after(self.context, kind as c_int) };
        }
    }
}
