;; What a Common Lisp program asks of its collector, spread over threads. Usage: work.lisp -- THREADS
;;
;; The amount of work is the same for every number of threads, and so is what is printed: one line for each part.

(defparameter *thread-count* (parse-integer (car (last (ext:command-args)))))
(defconstant +prime+ 999983)

(defun mix (&rest numbers)
  (let ((sum 7)) (dolist (n numbers sum) (setf sum (mod (+ (* 31 sum) n) +prime+)))))

(defun report (name value)
  (format t "~a ~a~%" name value)
  (finish-output))

;; Calls (funcall work i) for each i below count, from *thread-count* threads that take the next i from a shared counter,
;; and returns the sum of what the calls return.
(defun sum-over-threads (count work)
  (let ((lock (mp:make-lock :name "counter")) (next 0))
    (flet ((worker ()
             (let ((sum 0))
               (loop
                 (let ((i (mp:with-lock (lock) (prog1 next (incf next)))))
                   (when (>= i count) (return sum))
                   (incf sum (funcall work i)))))))
      (let ((threads (loop for id below *thread-count* collect (mp:process-run-function 'worker #'worker))))
        (loop for thread in threads sum (mp:process-join thread))))))

;; --- Instances, structures, generic functions

(defstruct node key (left nil) (right nil))

(defun insert (tree key)
  (cond ((null tree) (make-node :key key))
        ((= key (node-key tree)) tree)
        ((< key (node-key tree))
         (make-node :key (node-key tree) :left (insert (node-left tree) key) :right (node-right tree)))
        (t (make-node :key (node-key tree) :left (node-left tree) :right (insert (node-right tree) key)))))

(defun make-tree (size seed)
  (let ((tree nil) (x seed))
    (dotimes (i size tree)
      (setf x (mod (+ (* x 1103515245) 12345) 2147483648) tree (insert tree (ash x -8))))))

(defun tree-sum (tree)
  (if tree (mix (tree-sum (node-left tree)) (node-key tree) (tree-sum (node-right tree))) 1))

(defclass shape () ((name :initarg :name :reader name)))
(defclass box (shape) ((sides :initarg :sides :accessor sides)))
(defclass ball (shape) ((radius :initarg :radius :accessor radius)))
(defgeneric volume (shape))
(defmethod volume ((b box)) (apply #'* (sides b)))
(defmethod volume ((b ball)) (* 4 (expt (radius b) 3)))
(defmethod volume :around ((s shape)) (+ (length (name s)) (call-next-method)))

(defun object-work (i)
  (let ((sum 0))
    (dotimes (k 300 sum)
      (let ((s (if (evenp k)
                   (make-instance 'box :name "box" :sides (list i k 3))
                   (make-instance 'ball :name (format nil "ball ~d" k) :radius (/ k 2)))))
        (setf sum (mod (+ sum (floor (volume s))) +prime+))))))

;; --- Tables; keys that are kept must be found in weak ones, too

(defun table-work (i)
  (let ((by-name (make-hash-table :test 'equal)) (by-symbol (make-hash-table)) (sum 0))
    (dotimes (k 700)
      (setf (gethash (format nil "key-~d" (* k (1+ i))) by-name) (vector k (list k i))
            (gethash (make-symbol "S") by-symbol) (list k)))
    (loop for k below 700 by 3 do (remhash (format nil "key-~d" (* k (1+ i))) by-name))
    (maphash (lambda (key value) (incf sum (+ (length key) (svref value 0)))) by-name)
    (maphash (lambda (key value) (incf sum (+ (length (symbol-name key)) (car value)))) by-symbol)
    (mix sum (hash-table-count by-name) (hash-table-count by-symbol))))

(defun weak-work (i)
  (let ((table (make-hash-table :test 'eq :weakness :key)) (kept nil) (pointers nil) (sum 0))
    (dotimes (k 300)
      (let ((key (list k)))
        (setf (gethash key table) (vector k i))
        (push (ext:make-weak-pointer (vector 'dropped k)) pointers)
        (when (zerop (mod k 6))
          (push key kept)
          (push (ext:make-weak-pointer key) pointers))))
    (dolist (key kept) (incf sum (+ (car key) (svref (gethash key table) 0))))
    (let ((found (loop for p in pointers for v = (ext:weak-pointer-value p) when (consp v) collect v)))
      (mix sum (length found) (if (equal found kept) 1 0)))))

;; --- Numbers, strings, arrays

(defun number-work (i)
  (let ((product 1) (harmonic 0) (a 0) (b 1))
    (dotimes (k 250) (setf product (* product (+ k i 1))))
    (dotimes (k 120) (incf harmonic (/ 1 (+ k i 1))))
    (dotimes (k 1200) (psetf a b b (+ a b)))
    (mix (mod product +prime+) (mod (numerator harmonic) +prime+) (mod a +prime+)
         (mod (isqrt (* product 2)) +prime+) (length (princ-to-string product))
         (floor (* 1000 (coerce harmonic 'double-float))))))

(defun string-work (i)
  (let* ((text (with-output-to-string (out)
                 (dotimes (k 120) (prin1 (list k "a \"quoted\" word" :key (/ k 7) #\x (vector k i)) out))))
         (forms (with-input-from-string (in text) (loop for form = (read in nil) while form count t)))
         (grown (make-array 4 :element-type 'character :adjustable t :fill-pointer 0)))
    (dotimes (k 3000) (vector-push-extend (code-char (+ 97 (mod (* k i) 26))) grown))
    (mix (length text) forms (length grown) (count #\a grown)
         (length (concatenate 'string text (string-upcase grown) (subseq text 10))))))

(defun array-work (i)
  (let ((big (make-array 4000)) (matrix (make-array '(60 60) :element-type 'double-float)) (growing (make-array 1 :adjustable t :fill-pointer 0)))
    (dotimes (k 4000) (setf (svref big k) (cons (mod (* k 7919) 4001) i)))
    (setf big (sort big #'< :key #'car))
    (dotimes (r 60) (dotimes (c 60) (setf (aref matrix r c) (coerce (+ r (* c i)) 'double-float))))
    (dotimes (k 2000) (vector-push-extend (list k) growing))
    (mix (car (svref big 0)) (car (svref big 2000)) (car (svref big 3999))
         (floor (loop for k below 60 sum (aref matrix k k)))
         (reduce #'+ growing :key #'car))))

;; --- Control

(defun closure-work (i)
  (let ((f (lambda (x) (+ x i))) (counters nil))
    (dotimes (k 60) (let ((g f) (k k)) (setf f (lambda (x) (mod (+ k (funcall g (* 2 x))) +prime+)))))
    (dotimes (k 300) (let ((n k)) (push (lambda () (incf n i)) counters)))
    (mix (funcall f 1) (loop for c in counters do (funcall c) sum (funcall c)))))

(define-condition trouble (error) ((what :initarg :what :reader what)))

(defun condition-work (i)
  (let ((unwound 0) (sum 0))
    (dotimes (k 150)
      (incf sum
            (handler-case
                (unwind-protect
                     (case (mod k 4)
                       (0 (error 'trouble :what (list k i)))
                       (1 (catch 'out (dolist (x (list 1 2 3)) (when (= x 2) (throw 'out (+ x k))))))
                       (2 (restart-case (handler-bind ((trouble (lambda (c) (invoke-restart 'use (car (what c))))))
                                          (error 'trouble :what (list k)))
                            (use (value) (* 2 value))))
                       (t (block found (mapc (lambda (x) (when (> x 5) (return-from found x))) '(1 9 3)))))
                  (incf unwound))
              (trouble (c) (second (what c))))))
    (mix sum unwound)))

(defvar *depth* 0)
(defun special-work (i)
  (labels ((descend (n) (if (zerop n) *depth* (let ((*depth* (+ *depth* i))) (+ 1 (descend (1- n)))))))
    (let ((*depth* 1)) (descend 60))))

(defvar *package-lock* (mp:make-lock :name "packages"))
(defun evaluation-work (i)
  (let* ((name (format nil "FUNCTION-~d" i)) (symbol (mp:with-lock (*package-lock*) (intern name))))
    (mp:with-lock (*package-lock*)
      (eval `(defun ,symbol (x) (let ((all (loop for k below 40 collect (* k x)))) (reduce #'+ all)))))
    (mix (funcall symbol i) (length (symbol-name symbol)))))

;; --- The parts

(defparameter *live* (make-tree 2000 42))
(defparameter *live-sum* (tree-sum *live*))

;; Shared objects, each with roots of its own, loaded while there are threads at work.
(defvar *stop* nil)
(let ((churn (mp:process-run-function 'churn (lambda () (loop until *stop* count (make-list 100))))))
  (require :deflate)
  (require :ecl-cdb)
  (require :sockets)
  (setf *stop* t)
  (mp:process-join churn)
  (report "modules" (loop for name in '("DEFLATE" "ECL-CDB" "SB-BSD-SOCKETS") collect (and (find-package name) t))))

(report "trees" (sum-over-threads 16 (lambda (i) (tree-sum (make-tree 300 i)))))
(report "objects" (sum-over-threads 16 #'object-work))
(report "tables" (sum-over-threads 16 #'table-work))
(report "weak tables" (sum-over-threads 16 #'weak-work))
(report "numbers" (sum-over-threads 24 #'number-work))
(report "strings" (sum-over-threads 16 #'string-work))
(report "arrays" (sum-over-threads 12 #'array-work))
(report "closures" (sum-over-threads 40 #'closure-work))
(report "conditions" (sum-over-threads 40 #'condition-work))
(report "specials" (sum-over-threads 40 #'special-work))
(report "evaluation" (sum-over-threads 20 #'evaluation-work))

;; Threads that come and go, as many at a time as were asked for; each leaves a list behind.
(report "short threads"
        (let ((sum 0))
          (loop for start from 0 below 400 by *thread-count*
                do (let ((threads (loop for i from start below (min 400 (+ start *thread-count*))
                                        collect (let ((i i)) (mp:process-run-function 'short (lambda () (loop for k below 50 collect (* k i))))))))
                     (dolist (thread threads) (incf sum (reduce #'+ (mp:process-join thread))))))
          sum))

;; Producers and consumers around one queue, with a condition variable.
(defun queue-work (items)
  (let ((lock (mp:make-lock :name "queue")) (changed (mp:make-condition-variable)) (queue nil))
    (labels ((put (item)
               (mp:with-lock (lock)
                 (setf queue (append queue (list item)))
                 (mp:condition-variable-broadcast changed)))
             (take ()
               (mp:with-lock (lock)
                 (loop while (null queue) do (mp:condition-variable-wait changed lock))
                 (pop queue)))
             (consume () (loop for item = (take) until (eq item :end) sum (+ (car item) (length (cdr item)))))
             (produce (id) (loop for i from id below items by *thread-count* do (put (cons i (make-string (mod i 50)))))))
      (let ((consumers (loop repeat *thread-count* collect (mp:process-run-function 'consumer #'consume)))
            (producers (loop for id below *thread-count* collect (mp:process-run-function 'producer #'produce id))))
        (mapc #'mp:process-join producers)
        (loop repeat *thread-count* do (put :end))
        (loop for consumer in consumers sum (mp:process-join consumer))))))
(report "queue" (queue-work 600))

;; A finalizer runs for what is dead, never for what is alive. How many run in time is the collector's affair, so it is
;; only checked that most do.
(defvar *dead-finalized* 0)
(defvar *alive-finalized* 0)
(defun guard (count finalizer)
  (loop for i below count collect (let ((x (vector i))) (ext:set-finalizer x finalizer) x)))
(defvar *alive* (guard 50 (lambda (x) (declare (ignore x)) (incf *alive-finalized*))))
(mp:process-join (mp:process-run-function 'guard (lambda () (guard 500 (lambda (x) (when (vectorp x) (incf *dead-finalized*)))) nil)))
(loop repeat 3 do (ext:gc t) (make-list 1000))
(report "finalizers" (list (if (> *dead-finalized* 400) :most-run *dead-finalized*) *alive-finalized* (reduce #'+ *alive* :key (lambda (x) (svref x 0)))))

(report "live tree" (= *live-sum* (tree-sum *live*)))
(ext:quit 0)
