;; A module that is loaded while the program runs, with other threads at work.
(define-module (larder shapes)
  #:use-module (srfi srfi-9)
  #:export (make-box box-volume grow a-macro))

(define-record-type <box> (make-box width height depth) box?
  (width box-width) (height box-height) (depth box-depth))

(define (box-volume b) (* (box-width b) (box-height b) (box-depth b)))

(define (grow b by) (make-box (+ by (box-width b)) (+ by (box-height b)) (+ by (box-depth b))))

(define-syntax a-macro
  (syntax-rules () ((_ x) (let ((y x)) (list y y)))))
