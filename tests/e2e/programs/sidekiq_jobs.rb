# Jobs for Sidekiq. With KEY_PREFIX all its keys begin with that, which the gem redis-namespace sees to.
require "sidekiq"

# Sidekiq 6.4 calls redis-rb 4.8 in ways that this one calls old.
Redis.silence_deprecations = true
OPTIONS = { namespace: ENV["KEY_PREFIX"] }.compact

Sidekiq.configure_client { |config| config.redis = OPTIONS }
Sidekiq.configure_server do |config|
  config.redis = OPTIONS
  config.options[:poll_interval_average] = 0.2
end

# How often each job was done stands in a hash.
class Add
  include Sidekiq::Worker

  def perform(number)
    Sidekiq.redis { |redis| redis.hincrby("done", number, 1) }
  end
end

class FailsOnce
  include Sidekiq::Worker
  sidekiq_options retry: 3

  def perform(number)
    raise "once" if Sidekiq.redis { |redis| redis.incr("failures") } == 1

    Sidekiq.redis { |redis| redis.hincrby("done", number, 1) }
  end
end

# Is at work until its process ends, which gives it back to its queue.
class Endless
  include Sidekiq::Worker

  def perform
    Sidekiq.redis { |redis| redis.incr("endless") }
    sleep
  end
end
