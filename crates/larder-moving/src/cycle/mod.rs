//! Collections: stop, copy the young generation, perhaps mark and compact all of the heap, resume.
//!
//! The thread that needs memory collects, with the gang's helpers; others who need memory meanwhile wait for it. What it
//! needs it takes before the others go on, so that it cannot starve.

mod ahead;
mod compact;
mod copy;
mod mark;
mod roots;
mod verify;
mod weak;
mod worker;

use core::ops::Range;
use core::sync::atomic::Ordering;

use larder_lab::ChunkSource;
use larder_policy::crew::{CrewFacts, markers};
use larder_policy::generations::{
    OldFacts, SizeFacts, YoungFacts, full_is_due, least_old, old_ahead, young_limit, young_size,
};
use larder_sys::{clock, thread as system_thread};
use larder_units::Bytes;

pub(crate) use compact::stripes;
pub(crate) use verify::Verifier;
pub(crate) use worker::Worker;

use crate::handles::Tables;
use crate::heap::{Heap, Own, Want};
use crate::host::{Collection, Host};
use crate::space::BLOCK;
use crate::stats::Counters;
use crate::thread::{Thread, Threads};

/// What became of a wish to collect.
pub(crate) enum Outcome {
    /// It was done, and this is what was wanted.
    Done(Option<Range<usize>>),
    /// Another thread has collected meanwhile.
    Overtaken,
}

/// One collection, in a stopped world: what its phases share.
pub(crate) struct Cycle<'a, H: Host> {
    pub heap: &'a Heap<H>,
    pub threads: &'a Threads,
    pub tables: &'a mut Tables,
    pub own: &'a mut Own,
}

impl<H: Host> Heap<H> {
    /// The thread stands still for a collection of another's.
    #[cold]
    pub(crate) fn stop_here(&self, thread: &Thread) {
        self.while_safe(thread, || ());
    }

    /// Runs `f` while the thread is safe. If its stack is a root, all that it held in registers is on it by then.
    pub(crate) fn while_safe<R>(&self, thread: &Thread, f: impl FnOnce() -> R) -> R {
        let run = |stack_pointer| {
            thread.stack_pointer.set(stack_pointer);
            self.safepoint.become_safe(&thread.status);
            let result = f();
            self.safepoint.leave(&thread.status);
            result
        };
        if self.config.ambiguous_stacks { with_spilled_registers(run) } else { run(core::ptr::null_mut()) }
    }

    /// Stops the world: every thread of the registry is safe from here to [`Self::release`].
    pub(crate) fn stop(&self, threads: &Threads) {
        let counted = threads.iter().map(|thread| self.safepoint.request(&thread.status)).sum();
        self.safepoint.wait(counted);
    }

    /// Lets the world go on; [`Safepoint::announce`](larder_sync::safepoint::Safepoint::announce) follows.
    pub(crate) fn release(&self, threads: &Threads) {
        for thread in threads.iter() {
            self.safepoint.release(&thread.status);
        }
    }

    /// Collects, as `thread`. With `since`, only if nobody has collected since that epoch.
    pub(crate) fn collect(&self, thread: &Thread, kind: Collection, want: Want, since: Option<u64>) -> Outcome {
        // The lock outlasts the safe state: what the collection has provided is in no root, and another collection before
        // this thread runs again would take it away.
        let (_guard, outcome) = self.while_safe(thread, || {
            let guard = self.collecting.lock();
            if since.is_some_and(|epoch| epoch != self.buffers.source().epoch()) {
                return (guard, Outcome::Overtaken);
            }
            self.gang.start_again();
            let begin = clock::now();
            let range = self.registry.with(|threads| {
                self.stop(threads);
                let range = self.handles.with(|tables| {
                    // SAFETY: the collection lock is held.
                    let own = unsafe { &mut *self.own.get() };
                    Cycle { heap: self, threads, tables, own }.run(kind, want, begin)
                });
                self.release(threads);
                range
            });
            self.safepoint.announce();
            // SAFETY: the collection lock is held.
            self.gang.back_soon(unsafe { (*self.own.get()).wanted.clone() });
            (guard, Outcome::Done(range))
        });
        outcome
    }
}

impl<H: Host> Cycle<'_, H> {
    fn run(&mut self, kind: Collection, want: Want, begin: larder_units::Nanos) -> Option<Range<usize>> {
        let heap = self.heap;
        let counters = &heap.counters;
        let standing = clock::now();
        heap.gang.call(self.collectors(self.own.traced[0]));
        heap.large_since.store(0, Ordering::Relaxed);
        heap.host.before_collection(kind);
        let threads = self.threads;
        // SAFETY: the world is stopped, no thread in the buffers' slow path; the epoch changes right after.
        let retired = unsafe { heap.retire(threads) };
        heap.buffers.source().next_epoch();
        threads.iter().for_each(|thread| heap.flush_stores(thread));
        heap.young.close();
        let before = heap.config.verify.then(|| self.digest());

        self.copy_young();
        let copied = clock::now();
        Counters::add(&counters.young_collections, 1);
        counters.copying_ns.fetch_add(copied.since(standing).0, Ordering::Relaxed);

        // Before the limit that it decides: what is found now is right for what comes next.
        self.own.young_size = young_size(SizeFacts {
            size: Bytes(self.own.young_size),
            least: heap.config.young,
            most: heap.config.most_young,
            pause: copied.since(begin),
            since_last: begin.since(self.own.last_end),
            owners: retired.owners,
            buffer: heap.config.buffers.sizes.first(),
        })
        .0
        .next_multiple_of(2 * BLOCK);
        self.set_limit();
        let mut provided = None;
        let mut full = kind == Collection::Full || full_is_due(self.old_facts());
        if !full {
            provided = heap.provide(want);
            full = provided.is_none();
        }
        if full {
            // SAFETY: as above.
            unsafe {
                heap.old_buffers.retire_all(|each| threads.iter().for_each(|thread| each(&thread.old_lab)), None);
            }
            heap.old_buffers.source().next_epoch();
            self.compact_all();
            self.own.live = heap.old.used();
            Counters::add(&counters.full_collections, 1);
            counters.compacting_ns.fetch_add(clock::now().since(copied).0, Ordering::Relaxed);
            self.set_limit();
            provided = heap.provide(want);
        }
        self.prepare_old(full);
        if let Some(before) = before {
            self.verify(before, provided.clone());
        }
        heap.gang.dismiss();
        heap.host.after_collection(if full { Collection::Full } else { Collection::Young });

        let end = clock::now();
        self.own.last_end = end;
        let pause = end.since(begin).0;
        counters.young_bytes.store(self.own.young_size as u64, Ordering::Relaxed);
        counters.stopping_ns.fetch_add(standing.since(begin).0, Ordering::Relaxed);
        counters.pause_ns.fetch_add(pause, Ordering::Relaxed);
        counters.longest_pause_ns.fetch_max(pause, Ordering::Relaxed);
        provided
    }

    /// How many collectors a phase is worth: as many as were asked for, or what policy says of the bytes that the phase had to
    /// do last time. A small young generation is collected by one.
    fn collectors(&self, traced: usize) -> usize {
        let most = self.heap.gang.most();
        match self.heap.config.collectors {
            0 => markers(CrewFacts { usable_cpus: most, asked: None, traced: Bytes(traced) }),
            _ => most,
        }
    }

    fn old_facts(&self) -> OldFacts {
        OldFacts {
            used: Bytes(self.heap.old.used()),
            live: Bytes(self.own.live),
            least: least_old(self.heap.config.least_old, Bytes(self.heap.old.limit())),
            limit: Bytes(self.heap.old.limit()),
            young: Bytes(self.own.young_size),
        }
    }

    /// Sees to memory behind the end of the old generation: what is wanted is noted for after the pause, what is not wanted is
    /// given back.
    fn prepare_old(&mut self, full: bool) {
        let old = &self.heap.old;
        let ahead = old_ahead(self.old_facts(), Bytes(self.own.promoted), full).0;
        self.own.wanted = if full { 0..0 } else { old.wanted(ahead) };
        if full {
            old.keep(&self.heap.space, ahead);
        }
    }

    /// Lets mutators use as much of the young generation as policy says.
    fn set_limit(&mut self) {
        let young = &self.heap.young;
        let facts = YoungFacts { size: Bytes(self.own.young_size), survived: Bytes(young.used() * BLOCK) };
        // As many blocks as will be used must be left for survivors, and some that are only partly filled. Kept blocks need
        // none while they are kept.
        let (kept, blocks) = (self.own.kept, young.blocks());
        let most = kept + (blocks - kept) * 2 / 5;
        // But their pins may all go before the next collection, and then what is in them must have room, in this generation or the old
        // one. A block of objects fills four thirds of one there at most, so with itself it needs seven thirds.
        let old = &self.heap.old;
        let room = old.room() / BLOCK;
        let limit = young_limit(facts).0.div_ceil(BLOCK).min(most).min((blocks + room) * 3 / 7);
        young.allow(limit);
        let to_evacuate = limit.max(young.used());
        old.reserve((to_evacuate * 7).div_ceil(3).saturating_sub(blocks).min(room) * BLOCK);
    }
}

/// Calls `f` with the stack pointer, after everything that the caller held in registers was put on the stack.
fn with_spilled_registers<R>(f: impl FnOnce(*mut u8) -> R) -> R {
    struct Call<F, R> {
        f: Option<F>,
        result: Option<R>,
    }
    extern "C" fn enter<F: FnOnce(*mut u8) -> R, R>(stack_pointer: *mut u8, call: *mut u8) {
        // SAFETY: the call below, which lives until this returns.
        let call = unsafe { &mut *call.cast::<Call<F, R>>() };
        if let Some(f) = call.f.take() {
            call.result = Some(f(stack_pointer));
        }
    }
    fn address<F: FnOnce(*mut u8) -> R, R>(_: &Call<F, R>) -> extern "C" fn(*mut u8, *mut u8) {
        enter::<F, R>
    }
    let mut call = Call { f: Some(f), result: None };
    system_thread::with_spilled_registers(address(&call), (&raw mut call).cast());
    call.result.expect("the function was called")
}
