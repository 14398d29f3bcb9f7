# Fibers make trees, hashes and strings, and send what they find; the sums do not depend on their order.
class Tree
  getter left : Tree?
  getter right : Tree?

  def initialize(depth : Int32)
    if depth > 0
      @left = Tree.new(depth - 1)
      @right = Tree.new(depth - 1)
    end
  end

  def count : Int64
    1_i64 + (@left.try(&.count) || 0_i64) + (@right.try(&.count) || 0_i64)
  end
end

results = Channel({Int64, Int64, Int64}).new
fibers = 48
fibers.times do |i|
  spawn do
    trees = 0_i64
    6.times { trees += Tree.new(9).count }
    table = {} of String => Array(Int32)
    400.times { |k| table["key #{k}"] = (0..(k + i) % 11).to_a }
    Fiber.yield
    words = 0_i64
    table.each { |k, v| words += k.size + v.sum }
    text = String.build { |s| 300.times { |k| s << (k * i) % 97 << ',' } }
    results.send({trees, words, text.bytes.sum(0_i64)})
  end
end
sums = {0_i64, 0_i64, 0_i64}
fibers.times do
  r = results.receive
  sums = {sums[0] + r[0], sums[1] + r[1], sums[2] + r[2]}
end
puts sums
