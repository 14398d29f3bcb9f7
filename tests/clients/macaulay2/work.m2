R = QQ[x,y,z,w];
I = ideal(x^3-y*z*w, y^3-x*z^2-w, z^3-x*y-1);
print toString first entries gens gb I;
S = ZZ/101[a..f];
J = minors(2, genericMatrix(S, a, 2, 3));
print toString betti res J;
print (primaryDecomposition ideal(a*b, b*c, c*d));
print sum for i from 1 to 20000 list (i^7 % 1009);
print (30!);
h = new MutableHashTable;
for i from 0 to 3000 do h#(toString i) = toList(0..(i % 17));
print sum apply(values h, sum);
-- One task for each thread, each with the same work of lists and big numbers.
n = value getenv "WORK_THREADS";
allowableThreads = min(n + 1, maxAllowableThreads);
work = k -> () -> sum for i from 1 to 3000 list (2^(i % 200) + k) % 1000003;
tasks = for k from 0 to 63 list createTask work k;
scan(tasks, schedule);
while not all(tasks, isReady) do nanosleep 1000000;
print sum apply(tasks, taskResult);
exit 0
