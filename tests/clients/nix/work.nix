let
  range = first: last: if first > last then [ ] else builtins.genList (n: first + n) (last - first + 1);
  fib = n: if n < 2 then n else fib (n - 1) + fib (n - 2);
  sum = builtins.foldl' (a: b: a + b) 0;
  rem = a: b: a - b * (a / b);
  scrambled = map (n: rem (n * 7919) 10007) (range 1 6000);
  sorted = builtins.sort (a: b: a < b) scrambled;
  sets = builtins.listToAttrs (map (n: { name = "key-${toString n}"; value = { inherit n; square = n * n; }; }) (range 1 4000));
  merged = builtins.foldl' (a: n: a // { "${toString n}" = n; }) { } (range 1 300);
  text = builtins.concatStringsSep "," (map toString (range 1 5000));
  tree = depth: if depth == 0 then null else { left = tree (depth - 1); right = tree (depth - 1); };
  count = t: if t == null then 1 else count t.left + count t.right;
in
{
  fib = fib 20;
  sorted = builtins.elemAt sorted 3000;
  sets = sum (map (name: sets.${name}.square) (builtins.attrNames sets));
  merged = sum (builtins.attrValues merged);
  text = builtins.hashString "sha256" text;
  replaced = builtins.stringLength (builtins.replaceStrings [ "1" "22" ] [ "one" "two" ] text);
  tree = sum (map (n: count (tree 11)) (range 1 12));
  json = builtins.stringLength (builtins.toJSON sets);
  parsed = (builtins.fromJSON (builtins.toJSON { a = range 1 2000; })).a == range 1 2000;
}
