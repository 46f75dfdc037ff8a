# Gives Sidekiq's worker work, and tells what came of it. Usage: sidekiq_client.rb work | ended
require_relative "sidekiq_jobs"
require "sidekiq/api"

SECONDS_MAX = 60
JOBS = 36
THREADS = 4

def until_true
  ends = Time.now + SECONDS_MAX
  until yield
    raise "not within #{SECONDS_MAX} s" if Time.now > ends

    sleep 0.02
  end
end

def done
  Sidekiq.redis { |redis| redis.hgetall("done") }.to_h { |number, times| [number.to_i, times.to_i] }
end

def each_done_once
  done == (0...JOBS).to_h { |number| [number, 1] }
end

def work
  10.times { |number| Add.perform_async(number) }
  Add.perform_bulk((10...30).zip)
  (30...35).each { |number| Add.set(queue: "low").perform_in(0.5, number) }
  FailsOnce.perform_async(35)
  # The time of a retry is up to ten seconds away: a person who looks at the list of retries need not wait for it.
  until_true { Sidekiq::RetrySet.new.size == 1 }
  Sidekiq::RetrySet.new.retry_all
  until_true { done.size == JOBS }
  # As many as the worker has threads: one that waits would take back what another one gives back.
  THREADS.times { Endless.perform_async }
  until_true { Sidekiq.redis { |redis| redis.get("endless") } == THREADS.to_s }
  # The first heartbeat may come after all that.
  until_true { Sidekiq::ProcessSet.new.size == 1 }
  [each_done_once, Sidekiq::Queue.all.map(&:name).sort, Sidekiq::ProcessSet.new.map { |each| each["concurrency"] }]
end

def ended
  stats = Sidekiq::Stats.new
  left = Sidekiq::Queue.new.map(&:klass)
  [each_done_once, left, stats.scheduled_size, stats.retry_size, Sidekiq::ProcessSet.new.size]
end

puts Sidekiq.dump_json(ARGV == ["work"] ? work : ended)
