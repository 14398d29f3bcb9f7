;; What a Guile program asks of its collector, spread over threads. Usage: work.scm THREADS
;;
;; The amount of work is the same for every number of threads, and so is what is printed: one line for each part.

(use-modules (ice-9 threads) (ice-9 futures) (ice-9 vlist)
             (srfi srfi-1) (srfi srfi-9) (rnrs bytevectors) (system foreign))

(define thread-count (string->number (cadr (command-line))))
(define prime 999983)
(define (mix . numbers) (fold (lambda (n sum) (modulo (+ (* 31 sum) n) prime)) 7 numbers))
(define (report name value) (format #t "~a ~a\n" name value) (force-output))

;; --- Threads
;;
;; Guile 3.0.8 cannot grow a thread's stack of frames while another thread collects: between moving the stack and storing
;; the new stack pointer it may be stopped, and the collection then gives the memory from one stack to the other back to
;; the kernel ("madvise failed"), whatever lies there. So every thread here grows its stack before the others may
;; collect, and threads that do not are kept shallow. (`map` is recursive: it takes a frame for each element.)

(define (grow-stack depth) (if (zero? depth) 0 (+ 1 (grow-stack (- depth 1)))))
(define enough 400)
(grow-stack 8000)

;; Guile 3.0.8 can sleep for ever on a free mutex: `lock-mutex` of one that is held allocates before it waits, and if a
;; collection begins there, it runs what the collection has queued and then waits without looking at the mutex again (on the
;; stock library too). Waiting for a condition variable looks again. So while collections may happen, nothing here waits in
;; `lock-mutex`: not in a procedure of its own, and not inside Guile, which locks a mutex to start, join and share work.

(define-syntax-rule (with-lock mutex body ...)
  (begin
    (let again () (unless (try-mutex mutex) (usleep 50) (again)))
    (let ((result (begin body ...))) (unlock-mutex mutex) result)))

(define (join thread)
  (let wait () (unless (thread-exited? thread) (usleep 50) (wait)))
  (join-thread thread))

;; Calls (thunk) for each of the thunks in a thread of its own, all at once, and returns the list of threads.
(define (start-threads thunks)
  (define lock (make-mutex))
  (define changed (make-condition-variable))
  (define waiting (length thunks))
  (define (arrive-and-wait)
    (with-lock lock
      (set! waiting (- waiting 1))
      (if (zero? waiting) (broadcast-condition-variable changed))
      (let wait () (unless (zero? waiting) (wait-condition-variable changed lock) (wait)))))
  (gc-disable)
  (let ((threads (map (lambda (thunk) (call-with-new-thread (lambda () (grow-stack enough) (arrive-and-wait) (thunk)))) thunks)))
    (with-lock lock
      (let wait () (unless (zero? waiting) (wait-condition-variable changed lock) (wait))))
    (gc-enable)
    threads))

;; The same for the threads that compute futures: as many futures as there are such threads, each of which ends only when
;; all have begun.
(let ((lock (make-mutex)) (begun 0) (workers (- (current-processor-count) 1)))
  (gc-disable)
  (let ((futures (map (lambda (_)
                        (make-future (lambda ()
                                       (grow-stack enough)
                                       (with-lock lock (set! begun (+ begun 1)))
                                       (let wait () (when (< begun workers) (usleep 1000) (wait))))))
                      (iota workers))))
    (let wait () (when (< begun workers) (usleep 1000) (wait)))
    (for-each touch futures))
  (gc-enable))

;; Calls (work i) for each i below count, from thread-count threads that take the next i from a shared counter, and
;; returns the sum of what the calls return.
(define (sum-over-threads count work)
  (define lock (make-mutex))
  (define next 0)
  (define (take!) (with-lock lock (let ((i next)) (set! next (+ i 1)) i)))
  (define (worker)
    (let loop ((sum 0))
      (let ((i (take!))) (if (< i count) (loop (+ sum (work i))) sum))))
  (apply + (map join (start-threads (make-list thread-count worker)))))

;; --- Trees of records: an ordered tree, balanced by random priorities, that is rebuilt along the path of each insertion.

(define-record-type <node> (make-node key priority left right) node?
  (key node-key) (priority node-priority) (left node-left) (right node-right))

(define (insert tree key priority)
  (cond ((not tree) (make-node key priority #f #f))
        ((= key (node-key tree)) tree)
        ((< key (node-key tree))
         (let ((l (insert (node-left tree) key priority)))
           (if (> (node-priority l) (node-priority tree))
               (make-node (node-key l) (node-priority l) (node-left l)
                          (make-node (node-key tree) (node-priority tree) (node-right l) (node-right tree)))
               (make-node (node-key tree) (node-priority tree) l (node-right tree)))))
        (else
         (let ((r (insert (node-right tree) key priority)))
           (if (> (node-priority r) (node-priority tree))
               (make-node (node-key r) (node-priority r)
                          (make-node (node-key tree) (node-priority tree) (node-left tree) (node-left r))
                          (node-right r))
               (make-node (node-key tree) (node-priority tree) (node-left tree) r))))))

(define (tree-fold f seed tree)
  (if tree
      (tree-fold f (f (node-key tree) (tree-fold f seed (node-left tree))) (node-right tree))
      seed))

(define (next-random x) (modulo (+ (* x 1103515245) 12345) 2147483648))

(define (make-tree size seed)
  (let loop ((i 0) (x seed) (tree #f))
    (if (= i size)
        tree
        (let* ((key (next-random x)) (priority (next-random key)))
          (loop (+ i 1) priority (insert tree key priority))))))

(define (tree-sum tree) (tree-fold (lambda (key sum) (mix sum key)) 0 tree))

;; --- Tables

(define (table-work i)
  (let ((table (make-hash-table)))
    (do ((k 0 (+ k 1))) ((= k 2500))
      (hash-set! table (string-append "key-" (number->string (* k (+ i 1)))) (vector k (list k i))))
    (do ((k 0 (+ k 3))) ((>= k 2500))
      (hash-remove! table (string-append "key-" (number->string (* k (+ i 1))))))
    (hash-fold (lambda (key value sum) (modulo (+ sum (string-length key) (vector-ref value 0)) prime)) 0 table)))

(define (vhash-work i)
  (let ((table (fold (lambda (k table) (vhash-cons (* k i) (list k) table)) vlist-null (iota 600))))
    (fold (lambda (k sum) (+ sum (car (cdr (or (vhash-assv (* k i) table) '(0 0)))))) 0 (iota 600))))

;; Keys and values that are kept must be found; what else is in the tables is the collector's to remove.
(define (weak-work i)
  (let ((by-key (make-weak-key-hash-table)) (by-value (make-weak-value-hash-table)) (both (make-doubly-weak-hash-table)))
    (define (enter! k)
      (let ((key (string-append "weak " (number->string k))) (value (list k (* k i))))
        (hashq-set! by-key key (vector k))
        (hashv-set! by-value k value)
        (hashq-set! both key value)
        (cons key value)))
    (let ((kept (filter-map (lambda (k) (let ((entry (enter! k))) (and (zero? (modulo k 8)) entry))) (iota 800))))
      (fold (lambda (entry sum)
              (let ((k (cadr entry)))
                (mix sum (vector-ref (hashq-ref by-key (car entry)) 0)
                     (cadr (hashv-ref by-value k))
                     (if (eq? (hashq-ref both (car entry)) (cdr entry)) 1 0))))
            0 kept))))

;; --- Numbers, strings, vectors

(define (number-work i)
  (define (fibonacci n) (let loop ((n n) (a 0) (b 1)) (if (zero? n) a (loop (- n 1) b (+ a b)))))
  (let* ((factorial (fold * 1 (iota 220 (+ i 1))))
         (harmonic (fold (lambda (k sum) (+ sum (/ 1 (+ k 1)))) 0 (iota 150)))
         (power (modulo-expt (+ i 123456789012345678901234567890) (fibonacci 300) (+ (expt 2 607) -1))))
    (mix (modulo factorial prime) (modulo (numerator harmonic) prime) (modulo power prime)
         (string-length (number->string factorial)))))

(define (string-work i)
  (let* ((text (call-with-output-string
                (lambda (port)
                  (do ((k 0 (+ k 1))) ((= k 400))
                    (write (list k "a \"quoted\" λ" 'symbol (/ k 7) #\x (vector k (* i 1.5))) port)))))
         (data (call-with-input-string text
                 (lambda (port)
                   (let loop ((count 0)) (if (eof-object? (read port)) count (loop (+ count 1)))))))
         (grown (let loop ((s "seed") (n 0)) (if (= n 14) s (loop (string-append s s) (+ n 1)))))
         (words (string-split (string-join (map number->string (iota 500)) " ") #\space)))
    (mix (string-length text) data (string-length grown) (length words)
         (string-length (symbol->string (string->symbol (string-append "s" (number->string i))))))))

(define (vector-work i)
  (let* ((big (make-vector 40000 '()))
         (bytes (make-bytevector 60000 0)))
    (do ((k 0 (+ k 1))) ((= k 40000))
      (vector-set! big k (cons (modulo (* k 7919) 40009) i)))
    (do ((k 0 (+ k 8))) ((= k 60000))
      (bytevector-u64-native-set! bytes k (* k i)))
    (let ((sorted (sort big (lambda (a b) (< (car a) (car b))))))
      (mix (car (vector-ref sorted 0)) (car (vector-ref sorted 20000)) (car (vector-ref sorted 39999))
           (bytevector-u64-native-ref bytes 4000)))))

;; --- Control: closures, promises, continuations, prompts, exceptions

(define (make-chain length i)
  (fold (lambda (k f) (lambda (x) (modulo (+ k (f (* 2 x))) prime))) (lambda (x) (+ x i)) (iota length)))

(define (closure-work i)
  (let* ((chain (make-chain 100 i))
         (naturals (let from ((n i)) (delay (cons n (from (+ n 1))))))
         (nth (let loop ((s naturals) (n 2000)) (if (zero? n) (car (force s)) (loop (cdr (force s)) (- n 1))))))
    (fold (lambda (k sum) (mix sum (chain k))) nth (iota 40))))

;; A generator that leaves by a full continuation and is entered again by another.
(define (continuation-work i)
  (define (make-generator items)
    (define return #f)
    (define (resume)
      (for-each (lambda (item) (call/cc (lambda (next) (set! resume (lambda () (next #f))) (return item)))) items)
      (return #f))
    (lambda () (call/cc (lambda (k) (set! return k) (resume)))))
  (let ((next (make-generator (iota 150 i))))
    (let loop ((sum 0)) (let ((item (next))) (if item (loop (+ sum item)) (modulo sum prime))))))

;; Coroutines, suspended in the middle of a recursion; their stacks live in the heap until they go on.
(define (prompt-work i)
  (define tag (make-prompt-tag "coroutine"))
  (define (descend depth) (if (zero? depth) (abort-to-prompt tag depth) (+ 1 (descend (- depth 1)))))
  (define (start depth) (call-with-prompt tag (lambda () (descend depth)) (lambda (continue _) continue)))
  (let ((suspended (map (lambda (k) (start (+ 5 (modulo (* k 13) 60)))) (iota 60))))
    (fold (lambda (continue sum) (+ sum (continue i))) 0 (reverse suspended))))

(define (exception-work i)
  (define unwound 0)
  (define (risky k)
    (dynamic-wind
      (const #t)
      (lambda () (if (odd? k) (throw 'larder-error k (make-string 20 #\e)) (if (zero? (modulo k 10)) (vector-ref (vector) k) k)))
      (lambda () (set! unwound (+ unwound 1)))))
  (let ((sum (fold (lambda (k sum) (+ sum (catch #t (lambda () (risky k)) (lambda (key . rest) (if (eq? key 'larder-error) (car rest) 5)))))
                   0 (iota 300))))
    (mix sum unwound
         (with-exception-handler (lambda (e) 11) (lambda () (+ 1 (raise-exception (list (quote c) i) #:continuable? #t)))))))

;; --- Parameters of a thread, and code that is made and loaded while the program runs

(define current-depth (make-parameter 0))
(define (parameter-work i) (parameterize ((current-depth (+ i 1))) (let loop ((n 100)) (if (zero? n) (current-depth) (parameterize ((current-depth (+ 1 (current-depth)))) (loop (- n 1)))))))

(define cosine (pointer->procedure double (dynamic-func "cos" (dynamic-link)) (list double)))
(define (foreign-work i) (inexact->exact (round (* 1000 (fold (lambda (k sum) (+ sum (cosine (exact->inexact (+ k i))))) 0.0 (iota 200))))))

(define module-lock (make-mutex))
(define (module-work i)
  (define module (with-lock module-lock (let ((m (make-fresh-user-module))) (module-use! m (resolve-interface '(larder shapes))) m)))
  (+ (eval `(box-volume (grow (make-box 1 2 ,i) 3)) module)
     (apply + (eval `(let loop ((n 50) (all '())) (if (zero? n) (map car all) (loop (- n 1) (cons (a-macro (* n ,i)) all)))) module))))

;; --- The parts

(define live (make-tree 6000 42))
(define live-sum (tree-sum live))

(report "trees" (sum-over-threads 24 (lambda (i) (tree-sum (make-tree 1500 i)))))
(report "tables" (sum-over-threads 16 (lambda (i) (+ (table-work i) (vhash-work i)))))
(report "weak tables" (sum-over-threads 16 weak-work))
(report "numbers" (sum-over-threads 16 number-work))
(report "strings" (sum-over-threads 12 string-work))
(report "vectors" (sum-over-threads 10 vector-work))
(report "closures" (sum-over-threads 48 closure-work))
(report "continuations" (sum-over-threads 40 continuation-work))
(report "prompts" (sum-over-threads 40 prompt-work))
(report "exceptions" (sum-over-threads 40 exception-work))
(report "parameters" (sum-over-threads 40 parameter-work))
(report "foreign calls" (sum-over-threads 20 foreign-work))
(report "modules" (sum-over-threads 12 module-work))

;; Threads that come and go, as many at a time as were asked for; each leaves a list behind.
(define (in-batches total size make)
  (let loop ((start 0) (sum 0))
    (if (= start total)
        sum
        (let ((end (min total (+ start size))))
          (gc-disable)
          (let ((threads (map (lambda (i) (call-with-new-thread (lambda () (make i)))) (iota (- end start) start))))
            (gc-enable)
            (loop end (+ sum (apply + (map (lambda (thread) (apply + (join thread))) threads)))))))))
(define (multiples i) (let loop ((k 0) (all '())) (if (= k 100) all (loop (+ k 1) (cons (* k i) all)))))
(report "short threads" (in-batches 400 thread-count multiples))

;; Producers and consumers around one bounded queue, with two condition variables.
(define (queue-work items)
  (define lock (make-mutex))
  (define not-empty (make-condition-variable))
  (define not-full (make-condition-variable))
  (define queue '())
  (define (put! item)
    (with-lock lock
      (let wait () (when (>= (length queue) 16) (wait-condition-variable not-full lock) (wait)))
      (set! queue (append queue (list item)))
      (signal-condition-variable not-empty)))
  (define (take!)
    (with-lock lock
      (let wait () (when (null? queue) (wait-condition-variable not-empty lock) (wait)))
      (let ((item (car queue)))
        (set! queue (cdr queue))
        (signal-condition-variable not-full)
        item)))
  (define (consume)
    (let loop ((sum 0)) (let ((item (take!))) (if item (loop (+ sum (vector-ref item 0) (string-length (vector-ref item 1)))) sum))))
  (define (produce id)
    (do ((i id (+ i thread-count))) ((>= i items)) (put! (vector i (make-string (modulo i 50) #\q)))))
  (let* ((producers (map (lambda (id) (lambda () (produce id))) (iota thread-count)))
         (threads (start-threads (append producers (make-list thread-count consume)))))
    (for-each join (take threads thread-count))
    (for-each (lambda (_) (put! #f)) (iota thread-count))
    (apply + (map join (drop threads thread-count)))))
(report "queue" (queue-work 1500))

;; Futures start more futures; par-map uses the same pool of threads.
(define (future-sum depth)
  (if (zero? depth)
      (length (iota 50))
      (let ((left (future (future-sum (- depth 1)))))
        (+ (future-sum (- depth 1)) (touch left)))))
(gc-disable)
(report "futures" (+ (future-sum 6)
                     (apply + (par-map (lambda (i) (length (string->list (number->string (expt 7 i))))) (iota 200)))))
(gc-enable)

;; Guardians give back what is dead, whole, and never what is alive. How many come back in time is the collector's affair,
;; so it is only checked that most do.
(define guardian (make-guardian))
(define alive (map (lambda (i) (let ((v (vector 'alive i))) (guardian v) v)) (iota 100)))
(define (guard-dead! count) (do ((i 0 (+ i 1))) ((= i count)) (guardian (vector 'dead i (number->string i)))))
(for-each join (start-threads (list (lambda () (guard-dead! 1000)))))
(gc) (gc)
(define (returned)
  (let loop ((count 0) (good #t))
    (let ((v (guardian)))
      (if v
          (loop (+ count 1)
                (and good (eq? (vector-ref v 0) 'dead) (equal? (vector-ref v 2) (number->string (vector-ref v 1)))))
          (cons count good)))))
(define back (returned))
(report "guardian" (list (if (> (car back) 900) 'most-returned (car back)) (cdr back) (apply + (map (lambda (v) (vector-ref v 1)) alive))))

(define (deep-work i)
  (define tag (make-prompt-tag "deep"))
  (define (descend depth) (if (zero? depth) (abort-to-prompt tag depth) (+ 1 (descend (- depth 1)))))
  (let ((continue (call-with-prompt tag (lambda () (descend 3000)) (lambda (continue _) continue))))
    (gc)
    (mix ((make-chain 5000 i) 1) (continue i))))
(report "deep stacks" (apply + (map deep-work (iota 4))))

(report "live tree" (= live-sum (tree-sum live)))
