//! An intrusive list for each index.

use core::ptr::NonNull;
use core::sync::atomic::{AtomicUsize, Ordering};

use crate::areas::{By, Options};
use crate::domain::Domain;
use crate::locked::Busy;
use crate::word::Open64;

/// The first word of a node.
///
/// Sync: written by `push` while the node is the caller's; read by `pop` on the index that has it, and by whoever took it.
#[repr(C)]
#[derive(Debug, Default)]
pub struct Link {
    next: AtomicUsize,
}

impl Link {
    /// A link that leads nowhere.
    pub const fn new() -> Self {
        Self { next: AtomicUsize::new(0) }
    }
}

/// A last-in-first-out list of nodes for each index: what is pushed on one CPU is popped there.
///
/// ```
/// use core::ptr::NonNull;
/// use larder_percpu::{By, structures::{FreeList, Link}};
///
/// #[repr(C)]
/// struct Node { link: Link, value: u32 }
///
/// let list = FreeList::new(By::ConcurrencyId);
/// let node = Box::leak(Box::new(Node { link: Link::new(), value: 7 }));
/// // SAFETY: the node lives for ever, begins with its link, and is in no other list.
/// unsafe { list.push(NonNull::from(&mut *node).cast()) };
/// // The thread may have moved meanwhile, so all indices are looked at.
/// let found = list.take_all(|_| ()).unwrap();
/// assert_eq!(found, 1);
/// ```
pub struct FreeList {
    domain: Domain<Open64>,
}

impl FreeList {
    /// An empty list.
    pub const fn new(by: By) -> Self {
        Self { domain: Domain::new(by) }
    }

    /// An empty list, with options.
    pub const fn with(options: Options) -> Self {
        Self { domain: Domain::with(options) }
    }

    /// Puts a node onto the current index's list.
    ///
    /// # Safety
    /// The node is the caller's alone, in no list, and stays readable until it is taken out again.
    #[inline(always)]
    pub unsafe fn push(&self, node: NonNull<Link>) {
        let node = node.as_ptr().expose_provenance();
        // SAFETY: the area is the head's word; the caller vouches for the node.
        unsafe { self.domain.core().list_push_inlined::<Open64>(0, node, node) };
    }

    /// Puts a chain of linked nodes onto the current index's list.
    ///
    /// # Safety
    /// As for [`push`](Self::push), for every node from `first` to `last`.
    pub unsafe fn push_chain(&self, first: NonNull<Link>, last: NonNull<Link>) {
        let (first, last) = (first.as_ptr().expose_provenance(), last.as_ptr().expose_provenance());
        // SAFETY: as in `push`.
        unsafe { self.domain.core().list_push(0, first, last) };
    }

    /// Takes the node that was put last onto the current index's list. It is the caller's then.
    #[inline(always)]
    pub fn pop(&self) -> Option<NonNull<Link>> {
        // SAFETY: the area is the head's word; `push` has it that nodes are readable.
        let node = unsafe { self.domain.core().list_pop_inlined::<Open64>(0) };
        NonNull::new(core::ptr::with_exposed_provenance_mut(node))
    }

    /// Takes the whole list of the current index.
    pub fn pop_all(&self) -> Chain {
        Chain { next: self.domain.exchange(|head| head, 0) as usize }
    }

    /// Takes the whole list of any index, also one that other threads use now.
    pub fn take(&self, index: usize) -> Result<Chain, Busy> {
        self.domain.take_over(index, |head| {
            let next = head.load() as usize;
            head.store(&**head, 0);
            Chain { next }
        })
    }

    /// Takes every index's list and calls `each` with every node; says how many there were. Empty lists are not taken over.
    pub fn take_all(&self, mut each: impl FnMut(NonNull<Link>)) -> Result<usize, Busy> {
        let mut count = 0;
        for index in 0..self.domain.areas() {
            if self.domain.area(index).load() != 0 {
                self.take(index)?.for_each(|node| {
                    count += 1;
                    each(node);
                });
            }
        }
        Ok(count)
    }

    /// The domain below.
    pub fn domain(&self) -> &Domain<Open64> {
        &self.domain
    }
}

/// Nodes that were taken together. Dropping it before its end loses the rest.
#[derive(Debug)]
pub struct Chain {
    next: usize,
}

impl Iterator for Chain {
    type Item = NonNull<Link>;

    fn next(&mut self) -> Option<NonNull<Link>> {
        let node: NonNull<Link> = NonNull::new(core::ptr::with_exposed_provenance_mut(self.next))?;
        // SAFETY: the nodes of the chain are the holder's, and readable by what `push` asks for.
        self.next = unsafe { node.as_ref() }.next.load(Ordering::Relaxed);
        Some(node)
    }
}
